package jinja

import (
	"fmt"
	"strconv"
	"strings"
)

// tuple parses one expression, or several separated by commas as a tuple.
func (p *parser) tuple(conditionals bool) (expression, error) {
	first, err := p.tupleItem(conditionals)
	if err != nil || !p.isOp(",") {
		return first, err
	}
	items := []expression{first}
	for p.skipOp(",") {
		if p.tupleEnds() {
			break
		}
		item, err := p.tupleItem(conditionals)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return &tupleExpr{items}, nil
}

func (p *parser) tupleItem(conditionals bool) (expression, error) {
	if conditionals {
		return p.expression()
	}
	return p.nested(p.or)
}

func (p *parser) tupleEnds() bool {
	kind := p.peek().kind
	return kind == tokPrintEnd || kind == tokBlockEnd || p.isOp(")")
}

// nested runs a parse function one level deeper.
func (p *parser) nested(parse func() (expression, error)) (expression, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	return parse()
}

// expression parses a full expression with inline conditions.
func (p *parser) expression() (expression, error) { return p.nested(p.conditional) }

func (p *parser) conditional() (expression, error) {
	value, err := p.or()
	if err != nil {
		return nil, err
	}
	err = p.chain(func() (bool, error) {
		if !p.skipName("if") {
			return false, nil
		}
		test, err := p.or()
		if err != nil {
			return false, err
		}
		node := &conditional{test: test, then: value}
		if p.skipName("else") {
			node.otherwise, err = p.expression()
		}
		value = node
		return true, err
	})
	return value, err
}

// binary parses a left-associative chain of the operators that match reads.
func (p *parser) binary(operand func() (expression, error), match func() string, join func(op string, l, r expression) expression) (expression, error) {
	left, err := operand()
	if err != nil {
		return nil, err
	}
	err = p.chain(func() (bool, error) {
		op := match()
		if op == "" {
			return false, nil
		}
		right, err := operand()
		left = join(op, left, right)
		return true, err
	})
	return left, err
}

// matchName returns a matcher that consumes the name.
func (p *parser) matchName(name string) func() string {
	return func() string {
		if p.skipName(name) {
			return name
		}
		return ""
	}
}

func (p *parser) matchOps(ops ...string) func() string {
	return func() string {
		for _, op := range ops {
			if p.skipOp(op) {
				return op
			}
		}
		return ""
	}
}

func (p *parser) or() (expression, error) {
	return p.binary(p.and, p.matchName("or"), func(_ string, l, r expression) expression { return &orExpr{l, r} })
}

func (p *parser) and() (expression, error) {
	return p.binary(p.not, p.matchName("and"), func(_ string, l, r expression) expression { return &andExpr{l, r} })
}

func (p *parser) not() (expression, error) {
	if !p.skipName("not") {
		return p.compare()
	}
	operand, err := p.nested(p.not)
	return &notExpr{operand}, err
}

func (p *parser) compare() (expression, error) {
	first, err := p.sum()
	if err != nil {
		return nil, err
	}
	node := &comparison{first: first}
	for op := p.compareOp(); op != ""; op = p.compareOp() {
		right, err := p.sum()
		if err != nil {
			return nil, err
		}
		node.rest = append(node.rest, comparedTo{op, right})
	}
	if len(node.rest) == 0 {
		return first, nil
	}
	return node, nil
}

func (p *parser) compareOp() string {
	if op := p.matchOps("==", "!=", "<=", ">=", "<", ">")(); op != "" {
		return op
	}
	if p.skipName("in") {
		return "in"
	}
	if after := p.tokens[min(p.pos+1, len(p.tokens)-1)]; p.isName("not") && after.kind == tokName && after.text == "in" {
		p.pos += 2
		return "not in"
	}
	return ""
}

func joinArithmetic(op string, l, r expression) expression { return &arithmetic{op, l, r} }

func (p *parser) sum() (expression, error) {
	return p.binary(p.concat, p.matchOps("+", "-"), joinArithmetic)
}

func (p *parser) concat() (expression, error) {
	first, err := p.product()
	if err != nil || !p.isOp("~") {
		return first, err
	}
	parts := []expression{first}
	for p.skipOp("~") {
		part, err := p.product()
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	return &concatExpr{parts}, nil
}

func (p *parser) product() (expression, error) {
	return p.binary(p.power, p.matchOps("*", "/", "//", "%"), joinArithmetic)
}

func (p *parser) power() (expression, error) {
	unary := func() (expression, error) { return p.unary(true) }
	return p.binary(unary, p.matchOps("**"), joinArithmetic)
}

func (p *parser) unary(filters bool) (expression, error) {
	node, err := p.signed()
	if err != nil {
		return nil, err
	}
	if node, err = p.postfix(node); err != nil || !filters {
		return node, err
	}
	return p.filtersAndTests(node)
}

func (p *parser) signed() (expression, error) {
	op := p.matchOps("-", "+")()
	if op == "" {
		return p.primary()
	}
	operand, err := p.nested(func() (expression, error) { return p.unary(false) })
	return &signExpr{operand, op == "-"}, err
}

var constants = map[string]Value{
	"true": Bool(true), "True": Bool(true), "false": Bool(false), "False": Bool(false), "none": None{}, "None": None{},
}

func (p *parser) primary() (expression, error) {
	t := p.next()
	switch t.kind {
	case tokName:
		if v, ok := constants[t.text]; ok {
			return &constant{v}, nil
		}
		p.uses[t.text] = true
		return &nameExpr{t.text}, nil
	case tokString:
		return &constant{String(p.adjacentStrings(t.text))}, nil
	case tokInt, tokFloat:
		v, err := numberValue(t)
		return &constant{v}, err
	case tokOp:
		switch t.text {
		case "(":
			return p.nested(p.parenthesis)
		case "[":
			return p.nested(p.list)
		case "{":
			return p.nested(p.dict)
		}
	}
	return nil, fmt.Errorf("unexpected %s", t.describe())
}

func (p *parser) adjacentStrings(first string) string {
	if p.peek().kind != tokString {
		return first
	}
	var b strings.Builder
	b.WriteString(first)
	for p.peek().kind == tokString {
		b.WriteString(p.next().text)
	}
	return b.String()
}

func numberValue(t token) (Value, error) {
	if t.kind == tokFloat {
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil && f == 0 {
			return nil, fmt.Errorf("bad number %q", t.text)
		}
		return Float(f), nil
	}
	digits := strings.TrimLeft(t.text, "0")
	if digits == "" {
		return Int(0), nil
	}
	if n, err := strconv.ParseInt(t.text, radixOf(t.text), 64); err == nil {
		return Int(n), nil
	}
	if radixOf(t.text) != 10 || len(digits) > maxDigits {
		return nil, fmt.Errorf("integer %.20q... is too large", t.text)
	}
	return BigInt(digits), nil
}

func radixOf(digits string) int {
	if len(digits) > 1 && digits[0] == '0' && digits[1] > '9' {
		return 0
	}
	return 10
}

func (p *parser) parenthesis() (expression, error) {
	if p.skipOp(")") {
		return &tupleExpr{}, nil
	}
	node, err := p.tuple(true)
	if err != nil {
		return nil, err
	}
	return node, p.expectOp(")")
}

func (p *parser) list() (expression, error) {
	node := &listExpr{}
	for !p.skipOp("]") {
		if len(node.items) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
			if p.skipOp("]") {
				break
			}
		}
		item, err := p.expression()
		if err != nil {
			return nil, err
		}
		node.items = append(node.items, item)
	}
	return node, nil
}

func (p *parser) dict() (expression, error) {
	node := &dictExpr{}
	for !p.skipOp("}") {
		if len(node.keys) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
			if p.skipOp("}") {
				break
			}
		}
		key, err := p.expression()
		if err != nil {
			return nil, err
		}
		if err := p.expectOp(":"); err != nil {
			return nil, err
		}
		value, err := p.expression()
		if err != nil {
			return nil, err
		}
		node.keys, node.values = append(node.keys, key), append(node.values, value)
	}
	return node, nil
}
