package configjson

import (
	"fmt"
	"strings"
)

// Quant is what a checkpoint says about its stored formats. Which format a tensor has is decided by the tensors that
// are there, never by this.
type Quant struct {
	Method string // quant_method; "modelopt" for hf_quant_config.json, "unnamed" where there is no name, "" for none
	FP8KV  bool   // an FP8 cache is declared
}

// Quant reads quantization_config of config.json and the text of hf_quant_config.json, which may be nil.
func (o *Object) Quant(hfQuant []byte) Quant {
	var q Quant
	if c := o.Object("quantization_config", "quantization"); c != nil {
		q.Method = c.StringOr("unnamed", "quant_method")
		q.FP8KV = fp8(c.StringOr("", "kv_cache_quant_algo")) || eightBits(c)
	}
	if len(hfQuant) == 0 {
		return q
	}
	file, err := parse("hf_quant_config.json", hfQuant)
	if err == nil {
		if c := file.Object("quantization"); c != nil {
			q.Method = "modelopt"
			q.FP8KV = q.FP8KV || fp8(c.StringOr("", "kv_cache_quant_algo"))
		}
		err = file.Err()
	}
	if *o.first == nil {
		*o.first = err
	}
	return q
}

// Check reports methods whose tensors have names and layouts that nobody here knows.
func (q Quant) Check() error {
	switch q.Method {
	case "", "modelopt", "fp8", "compressed-tensors":
		return nil
	}
	return fmt.Errorf("config.json: quantization_config: quant_method %q is not supported", q.Method)
}

func fp8(algorithm string) bool { return strings.HasPrefix(strings.ToUpper(algorithm), "FP8") }

// eightBits reads kv_cache_scheme {"num_bits": 8, "type": "float"}.
func eightBits(c *Object) bool {
	s := c.Object("kv_cache_scheme")
	return s != nil && s.IntOr(0, 0, 64, "num_bits") == 8 && s.StringOr("", "type") == "float"
}
