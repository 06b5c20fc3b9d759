package jinja

import (
	"fmt"
)

// maxChain bounds operator, postfix and filter chains, whose trees are as deep
// as they are long.
const maxChain = 400

// maxNames bounds the parameters of a macro and the named arguments of a call.
const maxNames = 1000

// parser turns tokens into a tree. Its nesting is bounded by depth.
type parser struct {
	tokens []token
	pos    int
	depth  int
	limit  int
	loops  int // open loops, for break and continue
	uses   map[string]bool
}

// parseTemplate parses a whole template.
func parseTemplate(source string, limits Limits) ([]statement, error) {
	if len(source) > limits.SourceBytes {
		return nil, &LimitError{fmt.Sprintf("template larger than %d bytes", limits.SourceBytes)}
	}
	tokens, err := lex(source)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens, limit: limits.Depth, uses: map[string]bool{}}
	body, err := p.body()
	if err == nil && p.peek().kind != tokEOF {
		err = fmt.Errorf("unexpected tag %s", p.peek().describe())
	}
	if err != nil {
		return nil, atLine(p.peek().line, err)
	}
	return body, nil
}

func (p *parser) peek() token { return p.tokens[p.pos] }

func (p *parser) next() token {
	t := p.tokens[p.pos]
	if t.kind != tokEOF {
		p.pos++
	}
	return t
}

func (p *parser) isOp(op string) bool {
	t := p.peek()
	return t.kind == tokOp && t.text == op
}

func (p *parser) isName(name string) bool {
	t := p.peek()
	return t.kind == tokName && t.text == name
}

func (p *parser) skipOp(op string) bool {
	if p.isOp(op) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) skipName(name string) bool {
	if p.isName(name) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) expectOp(op string) error {
	if !p.skipOp(op) {
		return fmt.Errorf("expected %q, found %s", op, p.peek().describe())
	}
	return nil
}

func (p *parser) expectName() (string, error) {
	t := p.next()
	if t.kind != tokName {
		return "", fmt.Errorf("expected a name, found %s", t.describe())
	}
	return t.text, nil
}

func (p *parser) expect(kind tokenKind, what string) error {
	if p.peek().kind != kind {
		return fmt.Errorf("expected %s, found %s", what, p.peek().describe())
	}
	p.pos++
	return nil
}

func (p *parser) blockEnd() error { return p.expect(tokBlockEnd, "the end of the tag") }

func (p *parser) enter() error {
	p.depth++
	if p.depth > p.limit {
		return &LimitError{fmt.Sprintf("syntax nested deeper than %d", p.limit)}
	}
	return nil
}

func (p *parser) leave() { p.depth-- }

// chain runs link as long as it continues, at most maxChain times.
func (p *parser) chain(link func() (bool, error)) error {
	for range maxChain {
		more, err := link()
		if err != nil || !more {
			return err
		}
	}
	return &LimitError{fmt.Sprintf("an expression chains more than %d operators", maxChain)}
}

// body parses statements up to a tag whose name is in ends, which is left as
// the current token behind its opener, or to the end of the template.
func (p *parser) body(ends ...string) ([]statement, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	var out []statement
	for p.peek().kind != tokEOF {
		if p.atEnd(ends) {
			p.pos++
			return out, nil
		}
		s, err := p.statement()
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	if len(ends) > 0 {
		return nil, fmt.Errorf("the template ends before %q", ends[len(ends)-1])
	}
	return out, nil
}

func (p *parser) atEnd(ends []string) bool {
	if p.peek().kind != tokBlockBegin || p.tokens[p.pos+1].kind != tokName {
		return false
	}
	for _, end := range ends {
		if p.tokens[p.pos+1].text == end {
			return true
		}
	}
	return false
}

func (p *parser) statement() (statement, error) {
	t := p.next()
	switch t.kind {
	case tokData:
		return &textStmt{t.text}, nil
	case tokPrintBegin:
		return p.printTag(t.line)
	}
	name, err := p.expectName()
	if err != nil {
		return nil, err
	}
	parse, ok := p.tagParsers()[name]
	if !ok {
		return nil, fmt.Errorf("unknown tag %q", name)
	}
	return parse(t.line)
}

func (p *parser) printTag(line int) (statement, error) {
	value, err := p.tuple(true)
	if err != nil {
		return nil, err
	}
	return &printStmt{value, line}, p.expect(tokPrintEnd, "}}")
}
