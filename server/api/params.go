package api

import (
	"math"
	"strconv"

	"reprise/sampler"
)

// Bounds of one request. They keep a single client from taking the server's memory; what a model can do is bounded by
// the engine.
const (
	maxChoices   = 1024    // prompts x n
	maxN         = 128     // n
	maxPrompts   = 1024    // elements of prompt
	maxStops     = 64      // stop strings
	maxStopBytes = 1024    // of one stop string or bad word
	maxPromptIDs = 1 << 22 // the largest context an engine can be configured for
	maxListIDs   = 1 << 20 // allowed_token_ids
	greedyBelow  = 1e-5    // temperatures below are greedy: scaled logits would overflow
)

// common are the parameters that both kinds of requests share.
type common struct {
	model    string
	id       string // request_id, or ""
	n        int
	sampling sampler.Params
	seed     *uint64

	maxTokens int // -1 = as much as fits
	minTokens int
	stops     []string
	stopIDs   []int32
	ignoreEOS bool

	includeStop  bool
	skipSpecial  bool
	returnIDs    bool
	idsAsText    bool // return_tokens_as_token_ids
	logProbs     int  // alternatives with each token; -1 = none
	promptProbs  int  // prompt_logprobs; -1 = none
	stream       bool
	usageAtEnd   bool // stream_options.include_usage
	usageAlways  bool // stream_options.continuous_usage_stats
	addSpecial   bool
	truncateLast int // keep this many tokens of the prompt; 0 = refuse what does not fit, -1 = what the context holds
}

// readCommon reads what completions and chats share. Fields that differ between the two are the callers'.
func (a *API) readCommon(f *fields) common {
	f.refuseUnhonoured()
	c := common{
		model:       f.text("model", ""),
		id:          f.text("request_id", ""),
		n:           f.count("n", 1, 1, maxN),
		minTokens:   f.integer("min_tokens", 0),
		stops:       f.texts("stop", maxStops),
		stopIDs:     f.tokens("stop_token_ids", sampler.MaxStops),
		ignoreEOS:   f.boolean("ignore_eos", false),
		includeStop: f.boolean("include_stop_str_in_output", false),
		skipSpecial: f.boolean("skip_special_tokens", true),
		returnIDs:   f.boolean("return_token_ids", false) || a.config.Tokenizer == nil,
		idsAsText:   f.boolean("return_tokens_as_token_ids", false) || a.config.Tokenizer == nil,
		promptProbs: f.integer("prompt_logprobs", -1),
		stream:      f.boolean("stream", false),
	}
	a.readStream(f, &c)
	a.readSampling(f, &c)
	a.readTruncation(f, &c)
	f.checkCommon(&c)
	if f.err == nil && !a.knows(c.model) {
		f.fail(a.unknownModel(c.model))
	}
	return c
}

func (f *fields) checkCommon(c *common) {
	if len(c.id) > 256 {
		f.refuse("request_id", "%d bytes, at most 256 are supported", len(c.id))
	}
	for i, s := range c.stops {
		if s == "" || len(s) > maxStopBytes {
			f.refuse(element("stop", i), "must have 1 to %d bytes, not %d", maxStopBytes, len(s))
		}
	}
	if c.stream && c.promptProbs >= 0 {
		f.refuse("prompt_logprobs", "not available with stream")
	}
}

func (a *API) readStream(f *fields, c *common) {
	options := f.object("stream_options")
	c.usageAtEnd = options.boolean("include_usage", false)
	c.usageAlways = c.usageAtEnd && options.boolean("continuous_usage_stats", false)
	f.join(options)
	if f.has("stream_options") && !c.stream {
		f.refuse("stream_options", "only allowed with stream")
	}
}

func (a *API) readSampling(f *fields, c *common) {
	d := a.config.Defaults
	c.sampling = sampler.Params{
		Temperature: f.number("temperature", d.Temperature),
		TopP:        f.number("top_p", d.TopP),
		TopK:        max(f.integer("top_k", d.TopK), -1),
		MinP:        f.number("min_p", d.MinP),
		Repetition:  f.number("repetition_penalty", d.Repetition),
		Presence:    f.number("presence_penalty", d.Presence),
		Frequency:   f.number("frequency_penalty", d.Frequency),
		Bias:        f.bias("logit_bias"),
		Allowed:     f.tokens("allowed_token_ids", maxListIDs),
		Bad:         a.badWords(f, "bad_words"),
	}
	p := &c.sampling
	if k := f.integer("top_k", 0); k < -1 {
		f.refuse("top_k", "%d is less than -1", k)
	}
	if p.TopK == -1 {
		p.TopK = 0
	}
	if p.Temperature > 0 && p.Temperature < greedyBelow {
		p.Temperature = 0
	}
	if raw := f.raw("seed"); raw != nil {
		seed := uint64(f.asInteger("seed", raw, math.MinInt64, math.MaxInt64))
		c.seed = &seed
	}
}

// bias reads {"token id": number}.
func (f *fields) bias(name string) map[int32]float32 {
	o := f.object(name)
	if f.err != nil || len(o.members) == 0 {
		return nil
	}
	if len(o.members) > sampler.MaxBias {
		f.refuse(name, "%d entries, at most %d are supported", len(o.members), sampler.MaxBias)
		return nil
	}
	out := make(map[int32]float32, len(o.members))
	for key, raw := range o.members {
		id, err := strconv.ParseInt(key, 10, 32)
		if err != nil || id < 0 {
			f.refuse(name, "%q is not a token id", short([]byte(key)))
			return nil
		}
		out[int32(id)] = o.asNumber(key, raw)
	}
	f.join(o)
	return out
}

// badWords turns words into the tokens that spell them, at the start of a text and behind a space.
func (a *API) badWords(f *fields, name string) []int32 {
	words := f.texts(name, sampler.MaxBias)
	if len(words) > 0 && a.config.Tokenizer == nil {
		f.fail(a.noTokenizer(name))
		return nil
	}
	var out []int32
	for i, word := range words {
		if len(word) > maxStopBytes {
			f.refuse(element(name, i), "must have at most %d bytes, not %d", maxStopBytes, len(word))
			return nil
		}
		ids := a.encode(word)
		if len(ids) != 1 {
			f.fail(unsupported(f.prefix+element(name, i), "%.60q is %d tokens; only words of one token are supported", word, len(ids)))
			return nil
		}
		out = append(out, ids[0])
		if spaced := a.encode(" " + word); len(spaced) == 1 && spaced[0] != ids[0] {
			out = append(out, spaced[0])
		}
	}
	return out
}

func (a *API) readTruncation(f *fields, c *common) {
	k := f.integer("truncate_prompt_tokens", 0)
	if f.has("truncate_prompt_tokens") && (k < -1 || k == 0) {
		f.refuse("truncate_prompt_tokens", "must be -1 (what the context holds) or at least 1, not %d", k)
	}
	c.truncateLast = k
}

// maxTokens reads the answer's limit; absent gives def.
func (f *fields) maxTokens(def int, names ...string) int {
	for _, name := range names {
		if !f.has(name) {
			continue
		}
		n := f.integer(name, def)
		if n < 0 {
			f.refuse(name, "must not be negative, not %d", n)
		}
		return n
	}
	return def
}
