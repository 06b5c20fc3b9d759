package load

import (
	"encoding/json"
	"strconv"
)

// Body says what every request carries besides its prompt and length.
type Body struct {
	Model       string
	Temperature float64
	IgnoreEOS   bool            // answers have exactly the length that was asked for
	Chat        bool            // text prompts become a message of a user
	Plain       bool            // only what OpenAI's own API knows: no ignore_eos, no token ids, no running usage
	Extra       json.RawMessage // an object whose members are added; nil = none
}

// build writes the request and says which path takes it.
func (b Body) build(j Job) (path string, body []byte) {
	path = "/completions"
	body = make([]byte, 0, 512+len(j.Prompt.Text)+len(j.Prompt.Messages)+7*len(j.Prompt.IDs))
	body = append(body, `{"model":`...)
	body = appendText(body, b.Model)
	switch {
	case j.Prompt.Messages != nil:
		path = "/chat/completions"
		body = append(append(body, `,"messages":`...), j.Prompt.Messages...)
	case len(j.Prompt.IDs) > 0:
		body = appendTokens(append(body, `,"prompt":`...), j.Prompt.IDs)
	case b.Chat:
		path = "/chat/completions"
		body = appendText(append(body, `,"messages":[{"role":"user","content":`...), j.Prompt.Text)
		body = append(body, `}]`...)
	default:
		body = appendText(append(body, `,"prompt":`...), j.Prompt.Text)
	}
	body = strconv.AppendInt(append(body, `,"max_tokens":`...), int64(j.Output), 10)
	body = strconv.AppendFloat(append(body, `,"temperature":`...), b.Temperature, 'g', -1, 64)
	body = append(body, `,"stream":true,"stream_options":{"include_usage":true`...)
	if b.Plain {
		body = append(body, '}')
	} else {
		body = append(body, `,"continuous_usage_stats":true},"return_token_ids":true`...)
		if b.IgnoreEOS {
			body = append(body, `,"ignore_eos":true`...)
		}
	}
	if extra := b.members(); len(extra) > 0 {
		body = append(append(body, ','), extra...)
	}
	return path, append(body, '}')
}

// members is the inside of the extra object.
func (b Body) members() []byte {
	if len(b.Extra) < 2 {
		return nil
	}
	return b.Extra[1 : len(b.Extra)-1]
}

func appendTokens(body []byte, ids []int32) []byte {
	body = append(body, '[')
	for i, id := range ids {
		if i > 0 {
			body = append(body, ',')
		}
		body = strconv.AppendInt(body, int64(id), 10)
	}
	return append(body, ']')
}

func appendText(body []byte, text string) []byte {
	quoted, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string can always be written
	}
	return append(body, quoted...)
}
