package chat

import (
	"slices"
	"strings"

	"reprise/chat/jinja"
)

// argumentsOf is the arguments object of a call as JSON text, formatted like
// Python's json.dumps. Values in the tagged form are converted by the tool's
// schema.
func argumentsOf(call parsedCall, tools Tools) (string, error) {
	if call.arguments != nil {
		return jinja.EncodeJSON(call.arguments)
	}
	out := jinja.NewDict()
	for _, p := range call.parameters {
		out.Set(p.name, convert(p.value, schemaTypes(tools.parameter(call.name, p.name), 0)))
	}
	return jinja.EncodeJSON(out)
}

// schemaDepth bounds nesting of anyOf and its kin.
const schemaDepth = 8

// schemaTypes collects the JSON types that a schema allows.
func schemaTypes(schema *jinja.Dict, depth int) []string {
	if schema == nil || depth > schemaDepth {
		return nil
	}
	var types []string
	switch t := schema.Get("type").(type) {
	case jinja.String:
		types = append(types, strings.ToLower(string(t)))
	case *jinja.List:
		for _, item := range t.Items {
			if s, ok := item.(jinja.String); ok {
				types = append(types, strings.ToLower(string(s)))
			}
		}
	}
	for _, name := range []string{"anyOf", "oneOf", "allOf"} {
		options, _ := schema.Get(name).(*jinja.List)
		if options == nil {
			continue
		}
		for _, item := range options.Items {
			option, _ := item.(*jinja.Dict)
			types = append(types, schemaTypes(option, depth+1)...)
		}
	}
	return types
}

// convert reads a parameter's text as one of the types; text that fits none,
// or has no type, stays a string.
func convert(text string, types []string) jinja.Value {
	trimmed := strings.TrimSpace(text)
	if slices.Contains(types, "boolean") {
		switch strings.ToLower(trimmed) {
		case "true":
			return jinja.Bool(true)
		case "false":
			return jinja.Bool(false)
		}
	}
	if strings.EqualFold(trimmed, "null") && len(types) > 0 && !slices.Equal(types, []string{"string"}) {
		return jinja.None{}
	}
	v, err := jinja.DecodeJSON([]byte(trimmed))
	if err == nil && slices.ContainsFunc(types, func(t string) bool { return isType(v, t) }) {
		return v
	}
	return jinja.String(text)
}

func isType(v jinja.Value, name string) bool {
	switch v.(type) {
	case jinja.Int, jinja.BigInt:
		return name == "integer" || name == "number"
	case jinja.Float:
		return name == "number"
	case *jinja.Dict:
		return name == "object"
	case *jinja.List:
		return name == "array"
	}
	return false
}
