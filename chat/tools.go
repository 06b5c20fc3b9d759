package chat

import (
	"fmt"

	"reprise/chat/jinja"
)

// Tools are the functions offered to the model. The zero value offers none.
type Tools struct {
	list    *jinja.List
	schemas map[string]*jinja.Dict // parameters by function name
}

// Len is the number of tools.
func (t Tools) Len() int { return len(t.schemas) }

// Has tells whether a function of that name is offered.
func (t Tools) Has(name string) bool {
	_, ok := t.schemas[name]
	return ok
}

// ParseTools validates the tools field of a chat request; empty text, null
// and [] offer none. Faults are *FieldError.
func ParseTools(raw []byte) (Tools, error) {
	if len(raw) == 0 {
		return Tools{}, nil
	}
	v, err := jinja.DecodeJSON(raw)
	if err != nil {
		return Tools{}, fieldError("tools", "%v", err)
	}
	if v == (jinja.None{}) {
		return Tools{}, nil
	}
	list, ok := v.(*jinja.List)
	if !ok {
		return Tools{}, fieldError("tools", "must be an array")
	}
	tools := Tools{list: list, schemas: map[string]*jinja.Dict{}}
	for i, item := range list.Items {
		if err := tools.add(item, fmt.Sprintf("tools[%d]", i)); err != nil {
			return Tools{}, err
		}
	}
	return tools, nil
}

func (t Tools) add(item jinja.Value, field string) error {
	tool, ok := item.(*jinja.Dict)
	if !ok {
		return fieldError(field, "must be an object")
	}
	if kind, ok := tool.Get("type").(jinja.String); !ok || kind != "function" {
		return fieldError(field+".type", `must be "function"`)
	}
	function, ok := tool.Get("function").(*jinja.Dict)
	if !ok {
		return fieldError(field+".function", "must be an object")
	}
	name, ok := function.Get("name").(jinja.String)
	if !ok || name == "" {
		return fieldError(field+".function.name", "must be a non-empty string")
	}
	if t.Has(string(name)) {
		return fieldError(field+".function.name", "%.60q is offered twice", string(name))
	}
	parameters, ok := function.Get("parameters").(*jinja.Dict)
	if v := function.Get("parameters"); !ok && v != nil && v != (jinja.None{}) {
		return fieldError(field+".function.parameters", "must be an object (a JSON schema)")
	}
	t.schemas[string(name)] = parameters
	return nil
}

// value is the tools variable of a template: none without tools.
func (t Tools) value() jinja.Value {
	if t.Len() == 0 {
		return jinja.None{}
	}
	return t.list
}

// parameter returns the schema of one parameter, or nil.
func (t Tools) parameter(function, name string) *jinja.Dict {
	schema := t.schemas[function]
	if schema == nil {
		return nil
	}
	properties, _ := schema.Get("properties").(*jinja.Dict)
	if properties == nil {
		return nil
	}
	parameter, _ := properties.Get(name).(*jinja.Dict)
	return parameter
}
