package jinja

import "fmt"

// tagParsers lists the statement tags; each parser starts behind the name.
func (p *parser) tagParsers() map[string]func(line int) (statement, error) {
	return map[string]func(line int) (statement, error){
		"if": p.ifTag, "for": p.forTag, "set": p.setTag, "macro": p.macroTag, "call": p.callTag,
		"filter": p.filterTag, "with": p.withTag, "generation": p.generationTag,
		"break": p.breakTag, "continue": p.continueTag,
	}
}

// tagBody parses the end of the opening tag and the body up to one of ends,
// leaving the name of the end tag as the next token.
func (p *parser) tagBody(ends ...string) ([]statement, error) {
	if err := p.blockEnd(); err != nil {
		return nil, err
	}
	return p.body(ends...)
}

// closedBody is tagBody for a single end tag, which it consumes.
func (p *parser) closedBody(end string) ([]statement, error) {
	body, err := p.tagBody(end)
	if err != nil {
		return nil, err
	}
	p.pos++
	return body, p.blockEnd()
}

func (p *parser) ifTag(line int) (statement, error) {
	node := &ifStmt{line: line}
	for {
		test, err := p.tuple(false)
		if err != nil {
			return nil, err
		}
		body, err := p.tagBody("elif", "else", "endif")
		if err != nil {
			return nil, err
		}
		node.branches = append(node.branches, ifBranch{test, body})
		switch p.next().text {
		case "else":
			node.otherwise, err = p.closedBody("endif")
			return node, err
		case "endif":
			return node, p.blockEnd()
		}
	}
}

func (p *parser) forTag(line int) (statement, error) {
	node := &forStmt{line: line}
	if err := p.forHeader(node); err != nil {
		return nil, err
	}
	p.loops++
	body, err := p.tagBody("else", "endfor")
	p.loops--
	if err != nil {
		return nil, err
	}
	node.body = body
	if p.next().text == "else" {
		node.otherwise, err = p.closedBody("endfor")
		return node, err
	}
	return node, p.blockEnd()
}

func (p *parser) forHeader(node *forStmt) error {
	var err error
	if node.target, err = p.assignTarget(false); err != nil {
		return err
	}
	if node.target.contains("loop") {
		return fmt.Errorf("a loop cannot assign to its own variable 'loop'")
	}
	if !p.skipName("in") {
		return fmt.Errorf("expected \"in\", found %s", p.peek().describe())
	}
	if node.iterable, err = p.tuple(false); err != nil {
		return err
	}
	if p.skipName("if") {
		if node.filter, err = p.expression(); err != nil {
			return err
		}
	}
	if p.isName("recursive") {
		return fmt.Errorf("recursive loops are not supported")
	}
	return nil
}

func (t target) contains(name string) bool {
	if t.name == name {
		return true
	}
	for _, part := range t.tuple {
		if part.contains(name) {
			return true
		}
	}
	return false
}

// assignTarget parses a name, a tuple of targets or, where allowed,
// name.attribute.
func (p *parser) assignTarget(attributes bool) (target, error) {
	if attributes && p.tokens[p.pos].kind == tokName && p.pos+2 < len(p.tokens) {
		if dot := p.tokens[p.pos+1]; dot.kind == tokOp && dot.text == "." {
			object := p.next().text
			p.pos++
			name, err := p.expectName()
			return target{name: object, attribute: name}, err
		}
	}
	first, err := p.assignItem()
	if err != nil || !p.isOp(",") {
		return first, err
	}
	parts := []target{first}
	for p.skipOp(",") {
		if p.peek().kind != tokName && !p.isOp("(") || p.isName("in") {
			break
		}
		part, err := p.assignItem()
		if err != nil {
			return target{}, err
		}
		parts = append(parts, part)
	}
	return target{tuple: parts}, nil
}

func (p *parser) assignItem() (target, error) {
	if !p.skipOp("(") {
		name, err := p.expectName()
		if err == nil && reservedNames[name] {
			err = fmt.Errorf("cannot assign to %q", name)
		}
		return target{name: name}, err
	}
	if err := p.enter(); err != nil {
		return target{}, err
	}
	defer p.leave()
	t, err := p.assignTarget(false)
	if err != nil {
		return t, err
	}
	return t, p.expectOp(")")
}

var reservedNames = map[string]bool{"true": true, "false": true, "none": true, "True": true, "False": true, "None": true}

func (p *parser) setTag(line int) (statement, error) {
	to, err := p.assignTarget(true)
	if err != nil {
		return nil, err
	}
	if p.skipOp("=") {
		value, err := p.tuple(true)
		if err != nil {
			return nil, err
		}
		return &setStmt{to, value, line}, p.blockEnd()
	}
	filter, err := p.filters(nil)
	if err != nil {
		return nil, err
	}
	body, err := p.closedBody("endset")
	return &setBlock{to, filter, body, line}, err
}

func (p *parser) macroTag(line int) (statement, error) {
	name, err := p.expectName()
	if err != nil {
		return nil, err
	}
	def, err := p.macroDefinition(name, "endmacro")
	return &macroStmt{name, def, line}, err
}

// macroDefinition parses parameters and body of a macro or call block.
func (p *parser) macroDefinition(name, end string) (*macroDef, error) {
	def := &macroDef{name: name}
	if p.isOp("(") {
		if err := p.parameters(def); err != nil {
			return nil, err
		}
	} else if end == "endmacro" {
		return nil, fmt.Errorf("expected \"(\", found %s", p.peek().describe())
	}
	return def, p.macroBody(def, end)
}

func (p *parser) macroBody(def *macroDef, end string) (err error) {
	outerUses, outerLoops := p.uses, p.loops
	p.uses, p.loops = map[string]bool{}, 0
	def.body, err = p.closedBody(end)
	def.varargs, def.kwargs, def.caller = p.uses["varargs"], p.uses["kwargs"], p.uses["caller"]
	p.uses, p.loops = outerUses, outerLoops
	return err
}

func (p *parser) parameters(def *macroDef) error {
	p.pos++
	for !p.skipOp(")") {
		if len(def.params) > 0 {
			if err := p.expectOp(","); err != nil {
				return err
			}
		}
		name, err := p.expectName()
		if err != nil {
			return err
		}
		if len(def.params) == maxNames {
			return &LimitError{"a macro with too many parameters"}
		}
		def.params = append(def.params, name)
		if p.skipOp("=") {
			value, err := p.expression()
			if err != nil {
				return err
			}
			def.defaults = append(def.defaults, value)
		} else if len(def.defaults) > 0 {
			return fmt.Errorf("parameter %q without default follows one with a default", name)
		}
	}
	return nil
}

func (p *parser) callTag(line int) (statement, error) {
	def := &macroDef{name: "caller"}
	if p.isOp("(") {
		if err := p.parameters(def); err != nil {
			return nil, err
		}
	}
	value, err := p.expression()
	if err != nil {
		return nil, err
	}
	call, ok := value.(*callExpr)
	if !ok {
		return nil, fmt.Errorf("the call tag needs a call")
	}
	return &callStmt{call, def, line}, p.macroBody(def, "endcall")
}

func (p *parser) filterTag(line int) (statement, error) {
	filter, err := p.oneFilter(nil)
	if err == nil {
		filter, err = p.filters(filter)
	}
	if err != nil {
		return nil, err
	}
	body, err := p.closedBody("endfilter")
	return &filterStmt{filter, body, line}, err
}

func (p *parser) withTag(line int) (statement, error) {
	node := &withStmt{line: line}
	for p.peek().kind != tokBlockEnd {
		if len(node.targets) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		to, err := p.assignItem()
		if err != nil {
			return nil, err
		}
		if err := p.expectOp("="); err != nil {
			return nil, err
		}
		value, err := p.expression()
		if err != nil {
			return nil, err
		}
		node.targets, node.values = append(node.targets, to), append(node.values, value)
	}
	var err error
	node.body, err = p.closedBody("endwith")
	return node, err
}

func (p *parser) generationTag(int) (statement, error) {
	body, err := p.closedBody("endgeneration")
	return &groupStmt{body}, err
}

func (p *parser) breakTag(int) (statement, error) {
	if p.loops == 0 {
		return nil, fmt.Errorf("break outside a loop")
	}
	return &breakStmt{}, p.blockEnd()
}

func (p *parser) continueTag(int) (statement, error) {
	if p.loops == 0 {
		return nil, fmt.Errorf("continue outside a loop")
	}
	return &continueStmt{}, p.blockEnd()
}
