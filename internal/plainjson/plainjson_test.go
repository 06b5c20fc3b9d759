package plainjson

import "testing"

func TestDecode(t *testing.T) {
	type inner struct {
		Deep []string `json:"deep"`
	}
	type outer struct {
		Count  *int               `json:"count"`
		Share  float32            `json:"share"`
		On     bool               `json:"on"`
		Name   string             `json:"name"`
		Inner  inner              `json:"inner"`
		Number map[string]float64 `json:"number"`
	}
	for text, want := range map[string]string{
		`{"count":3,"share":0.5,"on":true,"name":"x","inner":{"deep":["a"]},"number":{"a":1}}`: "",
		` { } `:                          "",
		`null`:                           "",
		`{"count":1.5}`:                  "count must be a whole number, not 1.5",
		`{"count":1e3}`:                  "count must be a whole number, not 1e3",
		`{"count":99999999999999999999}`: "count is out of range: 99999999999999999999",
		`{"count":"x"}`:                  "count must be a whole number, not a string",
		`{"count":true}`:                 "count must be a whole number, not true or false",
		`{"count":[1]}`:                  "count must be a whole number, not an array",
		`{"share":"x"}`:                  "share must be a number, not a string",
		`{"share":1e999}`:                "share is out of range: 1e999",
		`{"on":1}`:                       "on must be true or false, not a number",
		`{"name":{}}`:                    "name must be a string, not an object",
		`{"inner":[]}`:                   "inner must be an object, not an array",
		`{"inner":{"deep":{}}}`:          "inner.deep must be an array, not an object",
		`{"number":5}`:                   "number must be an object, not a number",
		`[]`:                             "must be an object, not an array",
		`"x"`:                            "must be an object, not a string",
		`{"bla":1}`:                      `unknown field "bla"`,
		`{} {}`:                          "there is more behind the JSON value",
		`{}x`:                            "there is more behind the JSON value",
		``:                               "not valid JSON: it is empty",
		`{"count":`:                      "not valid JSON: its end is missing",
		`x`:                              "not valid JSON: invalid character 'x' looking for beginning of value",
	} {
		got := ""
		if err := Decode([]byte(text), new(outer), true); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	if err := Decode([]byte(`{"bla":1}`), new(outer), false); err != nil {
		t.Errorf("a member that is not known, where that is fine: %v", err)
	}
}
