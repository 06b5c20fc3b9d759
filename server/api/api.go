package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"reprise/chat"
	"reprise/chat/jinja"
	"reprise/engine"
	"reprise/sampler"
	"reprise/tokenizer"
)

// Sequence is a running request of an engine; see engine.Sequence.
type Sequence interface {
	Next(ctx context.Context) (*engine.Update, error)
	Cancel()
}

// Engine is what answers need of an engine.
type Engine interface {
	Submit(engine.Request) (Sequence, error)
	Limits() engine.Limits
}

// FromEngine adapts a real engine.
func FromEngine(e *engine.Engine) Engine { return adapted{e} }

type adapted struct{ *engine.Engine }

func (a adapted) Submit(r engine.Request) (Sequence, error) {
	s, err := a.Engine.Submit(r)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Config is what an API is made of.
type Config struct {
	Engine    Engine
	Tokenizer *tokenizer.Tokenizer // nil: token ids in, token ids out
	Template  *chat.Template       // nil: no chats
	// TemplateKwargs are variables of the chat template that requests may replace, as a JSON object; nil = none.
	TemplateKwargs []byte
	Models         []string       // names that requests may use; the first one is shown
	Defaults       sampler.Params // of requests that leave a parameter out
	Seed           uint64         // of requests that bring none
	Observe        func(Outcome)  // called once for every sequence that ended; may be nil
	Created        time.Time      // of the model, as shown
}

// Outcome is how a sequence ended, for metrics.
type Outcome struct {
	Reason       string // finish_reason, "abort" or "error"
	Tokens       int
	FirstToken   time.Duration // since the request arrived; 0 = there was none
	PerToken     time.Duration // between tokens behind the first; 0 = fewer than two
	Whole        time.Duration
	PromptTokens int
}

// API answers requests. It is safe for concurrent use.
type API struct {
	config    Config
	markers   chat.Markers
	markerIDs []int32
	bos       string
	eos       string
	kwargs    *jinja.Dict // defaults of chat_template_kwargs
	seeds     atomic.Uint64
}

// New makes an API. There must be at least one model name.
func New(c Config) *API {
	if len(c.Models) == 0 {
		panic("api: no model name")
	}
	a := &API{config: c, kwargs: jinja.NewDict()}
	if v, err := jinja.DecodeJSON(c.TemplateKwargs); err == nil {
		if dict, ok := v.(*jinja.Dict); ok {
			a.kwargs = dict
		}
	}
	if t := c.Tokenizer; t != nil {
		a.markers = chat.FindMarkers(t)
		a.markerIDs = a.markers.IDs()
		a.bos, a.eos = tokenText(t, t.BOS), tokenText(t, t.EOS)
	}
	return a
}

func tokenText(t *tokenizer.Tokenizer, which func() (int32, bool)) string {
	if id, ok := which(); ok {
		return string(t.TokenBytes(id))
	}
	return ""
}

// Tokenizer is the model's, or nil.
func (a *API) Tokenizer() *tokenizer.Tokenizer { return a.config.Tokenizer }

// knows tells whether requests may use a model name; leaving it out is fine, there is only one model.
func (a *API) knows(model string) bool { return model == "" || slices.Contains(a.config.Models, model) }

func (a *API) unknownModel(model string) *Error {
	return &Error{
		Status: http.StatusNotFound, Type: TypeInvalid, Param: "model", Code: "model_not_found",
		Message: fmt.Sprintf("model: %q does not exist; this server has %q", short([]byte(model)), a.config.Models[0]),
	}
}

// name is the model's name as an answer shows it.
func (a *API) name(asked string) string {
	if asked == "" {
		return a.config.Models[0]
	}
	return asked
}

// nextSeed makes the seed of a request that brings none: a different one each time, the same series in each run.
func (a *API) nextSeed() uint64 {
	z := a.config.Seed + a.seeds.Add(1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (a *API) observe(o Outcome) {
	if a.config.Observe != nil {
		a.config.Observe(o)
	}
}
