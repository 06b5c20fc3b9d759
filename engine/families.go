package engine

import (
	"fmt"
	"slices"
	"strings"

	"reprise/model"
	"reprise/model/configjson"
	"reprise/model/nemotron"
	"reprise/model/qwen35"
	"reprise/weights"
)

// family parses the config.json of its model types.
type family struct {
	types []string
	parse func(config, hfQuant []byte) (model.Config, error)
}

// families is the one table that a new model family adds a line to.
var families = []family{
	{[]string{"nemotron_h"}, func(c, q []byte) (model.Config, error) { return nemotron.Parse(c, q) }},
	{[]string{"qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text"}, func(c, q []byte) (model.Config, error) { return qwen35.Parse(c, q) }},
}

// ParseConfig finds the family of a model folder and parses its configuration.
func ParseConfig(f *weights.Folder) (model.Config, error) {
	o, err := configjson.Parse(f.Config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name, err)
	}
	name := o.StringOr("", "model_type")
	var known []string
	for _, fam := range families {
		if slices.Contains(fam.types, name) {
			c, err := fam.parse(f.Config, f.HFQuant)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f.Name, err)
			}
			return c, nil
		}
		known = append(known, fam.types...)
	}
	return nil, fmt.Errorf("%s/config.json: model_type %.60q is not supported (supported: %s)", f.Name, name, strings.Join(known, ", "))
}
