package nemotron

import "reprise/model/configjson"

// kind of a layer, by its letter in a pattern.
type kind byte

const (
	mambaLayer     kind = 'M'
	attentionLayer kind = '*'
	moeLayer       kind = 'E'
	denseLayer     kind = '-'
)

// Names of kinds in a list; the last two are how newer tools write a list back.
var kindNames = map[string]kind{
	"M": mambaLayer, "*": attentionLayer, "E": moeLayer, "-": denseLayer,
	"mamba": mambaLayer, "attention": attentionLayer, "moe": moeLayer, "mlp": denseLayer,
	"linear_attention": mambaLayer, "full_attention": attentionLayer,
}

const maxLayers = 1024

// patterns reads the kinds of all layers; num_hidden_layers may be stale or null and is not looked at.
func (c *Config) patterns(o *configjson.Object) {
	o.Require("hybrid_override_pattern", "layers_block_type")
	c.pattern = parsePattern(o, "hybrid_override_pattern", "layers_block_type")
	if o.IntOr(0, 0, 1, "num_nextn_predict_layers") == 0 {
		return
	}
	o.Require("mtp_hybrid_override_pattern", "mtp_layers_block_type")
	c.mtpPattern = parsePattern(o, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
	if c.countMTP(mambaLayer) > 0 {
		o.Fail("mtp_hybrid_override_pattern", "Mamba layers in the MTP head are not supported")
	}
	if c.countMTP(attentionLayer) == 0 {
		o.Fail("mtp_hybrid_override_pattern", "an MTP head without attention is not supported")
	}
}

// parsePattern reads a string of letters, or a list of letters or names, under the first key that is present.
func parsePattern(o *configjson.Object, keys ...string) []kind {
	key := keys[0]
	if !o.Has(key) {
		key = keys[1]
	}
	var names []string
	if o.IsString(key) {
		for _, letter := range o.StringOr("", key) {
			names = append(names, string(letter))
		}
	} else {
		names = o.Strings(maxLayers, key)
	}
	if len(names) < 1 || len(names) > maxLayers {
		o.Fail(key, "%d layers, want 1..%d", len(names), maxLayers)
		return nil
	}
	pattern := make([]kind, len(names))
	for i, name := range names {
		k, ok := kindNames[name]
		if !ok {
			o.Fail(key, "layer %d: %.40q is no kind of layer (M, *, E, -)", i, name)
		}
		pattern[i] = k
	}
	return pattern
}

// lastOf is the number of the last layer of a kind.
func lastOf(pattern []kind, k kind) int {
	for i := len(pattern) - 1; i >= 0; i-- {
		if pattern[i] == k {
			return i
		}
	}
	return -1
}

func (c *Config) count(k kind) int    { return count(c.pattern, k) }
func (c *Config) countMTP(k kind) int { return count(c.mtpPattern, k) }

func count(pattern []kind, k kind) int {
	n := 0
	for _, p := range pattern {
		if p == k {
			n++
		}
	}
	return n
}
