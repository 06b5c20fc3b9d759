package jinja

import (
	"errors"
	"math"
	"math/bits"
)

var (
	errDivision = errors.New("division by zero")
	errOverflow = errors.New("an integer result is beyond 64 bits")
)

func intArithmetic(op string, a, b int64) (Value, error) {
	switch op {
	case "+":
		if c := a + b; (c > a) == (b > 0) {
			return Int(c), nil
		}
	case "-":
		if c := a - b; (c < a) == (b > 0) {
			return Int(c), nil
		}
	case "*":
		if c, ok := multiply(a, b); ok {
			return Int(c), nil
		}
	case "/":
		if b == 0 {
			return nil, errDivision
		}
		return Float(float64(a) / float64(b)), nil
	case "//", "%":
		return floorDivide(op, a, b)
	case "**":
		return intPower(a, b)
	}
	return nil, errOverflow
}

func multiply(a, b int64) (int64, bool) {
	hi, lo := bits.Mul64(magnitude(a), magnitude(b))
	if hi != 0 || lo > math.MaxInt64 {
		return 0, false
	}
	if (a < 0) != (b < 0) {
		return -int64(lo), true
	}
	return int64(lo), true
}

func magnitude(a int64) uint64 {
	if a < 0 {
		return -uint64(a)
	}
	return uint64(a)
}

// floorDivide rounds towards minus infinity, as Python does.
func floorDivide(op string, a, b int64) (Value, error) {
	if b == 0 {
		return nil, errDivision
	}
	if a == math.MinInt64 && b == -1 {
		return nil, errOverflow
	}
	q, r := a/b, a%b
	if r != 0 && (r < 0) != (b < 0) {
		q, r = q-1, r+b
	}
	if op == "%" {
		return Int(r), nil
	}
	return Int(q), nil
}

func intPower(a, b int64) (Value, error) {
	if b < 0 {
		return floatArithmetic("**", float64(a), float64(b))
	}
	result, base := int64(1), a
	for ok := true; b > 0; b >>= 1 {
		if b&1 == 1 {
			if result, ok = multiply(result, base); !ok {
				return nil, errOverflow
			}
		}
		if b > 1 {
			if base, ok = multiply(base, base); !ok {
				return nil, errOverflow
			}
		}
	}
	return Int(result), nil
}

func floatArithmetic(op string, a, b float64) (Value, error) {
	switch op {
	case "+":
		return Float(a + b), nil
	case "-":
		return Float(a - b), nil
	case "*":
		return Float(a * b), nil
	case "**":
		return floatPower(a, b)
	}
	if b == 0 {
		return nil, errDivision
	}
	switch op {
	case "/":
		return Float(a / b), nil
	case "//":
		return Float(math.Floor(a / b)), nil
	}
	r := math.Mod(a, b)
	if r != 0 && (r < 0) != (b < 0) {
		r += b
	}
	return Float(r), nil
}

func floatPower(a, b float64) (Value, error) {
	r := math.Pow(a, b)
	switch {
	case a == 0 && b < 0:
		return nil, errDivision
	case math.IsNaN(r) && !math.IsNaN(a) && !math.IsNaN(b):
		return nil, errors.New("a power has a complex result")
	case math.IsInf(r, 0) && !math.IsInf(a, 0) && !math.IsInf(b, 0):
		return nil, errors.New("a float result is out of range")
	}
	return Float(r), nil
}
