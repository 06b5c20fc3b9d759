// Package configjson reads the JSON that checkpoints carry: more lenient than JSON where real files are (bare Infinity
// and NaN, duplicate keys of which the last wins, null for absent), and stricter where it matters (every number has
// limits, every error names the key).
//
// Not here: which keys a family has (model/nemotron, model/qwen35).
package configjson
