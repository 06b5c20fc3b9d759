package jinja

import "fmt"

// postfix parses attribute access, subscripts and calls behind a value.
func (p *parser) postfix(node expression) (expression, error) {
	err := p.chain(func() (more bool, err error) {
		switch {
		case p.skipOp("."):
			node, err = p.dotted(node)
		case p.skipOp("["):
			node, err = p.nested(func() (expression, error) { return p.subscript(node) })
		case p.isOp("("):
			node, err = p.call(node)
		default:
			return false, nil
		}
		return true, err
	})
	return node, err
}

func (p *parser) dotted(object expression) (expression, error) {
	t := p.next()
	switch t.kind {
	case tokName:
		return &attribute{object, t.text}, nil
	case tokInt:
		index, err := numberValue(t)
		return &subscript{object, &constant{index}}, err
	}
	return nil, fmt.Errorf("expected an attribute name, found %s", t.describe())
}

func (p *parser) subscript(object expression) (expression, error) {
	if p.isOp(":") {
		return p.slice(object, nil)
	}
	index, err := p.expression()
	if err != nil {
		return nil, err
	}
	if p.isOp(":") {
		return p.slice(object, index)
	}
	if p.isOp(",") {
		return nil, fmt.Errorf("a subscript takes one index")
	}
	return &subscript{object, index}, p.expectOp("]")
}

func (p *parser) slice(object, start expression) (expression, error) {
	node := &sliceExpr{object: object, start: start}
	for _, bound := range []*expression{&node.stop, &node.step} {
		if !p.skipOp(":") {
			break
		}
		if p.isOp(":") || p.isOp("]") {
			continue
		}
		value, err := p.expression()
		if err != nil {
			return nil, err
		}
		*bound = value
	}
	return node, p.expectOp("]")
}

func (p *parser) call(callee expression) (expression, error) {
	args, err := p.callArguments()
	return &callExpr{callee, args}, err
}

// callArguments parses a parenthesised argument list.
func (p *parser) callArguments() (args arguments, err error) {
	if err := p.enter(); err != nil {
		return args, err
	}
	defer p.leave()
	p.pos++
	for first := true; !p.skipOp(")"); first = false {
		if !first {
			if err := p.expectOp(","); err != nil {
				return args, err
			}
			if p.skipOp(")") {
				break
			}
		}
		if err := p.argument(&args); err != nil {
			return args, err
		}
	}
	return args, nil
}

func (p *parser) argument(args *arguments) (err error) {
	switch {
	case p.skipOp("**"):
		if args.spreadDict != nil {
			return fmt.Errorf("a call takes one ** argument")
		}
		args.spreadDict, err = p.expression()
		return err
	case args.spreadDict != nil:
		return fmt.Errorf("an argument follows **")
	case p.skipOp("*"):
		if args.spread != nil {
			return fmt.Errorf("a call takes one * argument")
		}
		args.spread, err = p.expression()
		return err
	}
	if t := p.tokens[min(p.pos+1, len(p.tokens)-1)]; p.peek().kind == tokName && t.kind == tokOp && t.text == "=" {
		name := p.next().text
		p.pos++
		value, err := p.expression()
		if len(args.named) == maxNames {
			return &LimitError{"a call with too many named arguments"}
		}
		args.named = append(args.named, namedExpression{name, value})
		return err
	}
	if len(args.named) > 0 || args.spread != nil {
		return fmt.Errorf("a positional argument follows a named one")
	}
	value, err := p.expression()
	args.positional = append(args.positional, value)
	return err
}

// filtersAndTests parses |filter, is test and calls of their results.
func (p *parser) filtersAndTests(node expression) (expression, error) {
	err := p.chain(func() (more bool, err error) {
		switch {
		case p.skipOp("|"):
			node, err = p.oneFilter(node)
		case p.skipName("is"):
			node, err = p.test(node)
		case p.isOp("("):
			node, err = p.call(node)
		default:
			return false, nil
		}
		return true, err
	})
	return node, err
}

// filters parses any number of |filter behind input, which may be nil.
func (p *parser) filters(input expression) (expression, error) {
	err := p.chain(func() (more bool, err error) {
		if !p.skipOp("|") {
			return false, nil
		}
		input, err = p.oneFilter(input)
		return true, err
	})
	return input, err
}

// dottedName parses a.b.c as one name.
func (p *parser) dottedName() (string, error) {
	name, err := p.expectName()
	for err == nil && p.skipOp(".") {
		var part string
		part, err = p.expectName()
		name += "." + part
	}
	return name, err
}

func (p *parser) oneFilter(input expression) (expression, error) {
	name, err := p.dottedName()
	if err != nil {
		return nil, err
	}
	node := &filterExpr{input: input, name: name}
	if p.isOp("(") {
		node.args, err = p.callArguments()
	}
	return node, err
}

func (p *parser) test(input expression) (expression, error) {
	negated := p.skipName("not")
	name, err := p.dottedName()
	if err != nil {
		return nil, err
	}
	node := &testExpr{input: input, name: name}
	switch {
	case p.isOp("("):
		node.args, err = p.callArguments()
	case p.testArgumentFollows():
		err = p.bareTestArgument(node)
	}
	if negated {
		return &notExpr{node}, err
	}
	return node, err
}

// testArgumentFollows tells whether a test takes its argument without
// parentheses.
func (p *parser) testArgumentFollows() bool {
	t := p.peek()
	switch t.kind {
	case tokName:
		return t.text != "else" && t.text != "or" && t.text != "and"
	case tokString, tokInt, tokFloat:
		return true
	case tokOp:
		return t.text == "[" || t.text == "{"
	}
	return false
}

func (p *parser) bareTestArgument(node *testExpr) error {
	if p.isName("is") {
		return fmt.Errorf("tests cannot be chained by is")
	}
	arg, err := p.primary()
	if err == nil {
		arg, err = p.postfix(arg)
	}
	node.args.positional = []expression{arg}
	return err
}
