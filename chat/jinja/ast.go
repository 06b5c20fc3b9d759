package jinja

// expression is a node that has a value.
type expression interface {
	eval(vm *machine, sc *scope) (Value, error)
}

// statement is a node that writes output or changes variables.
type statement interface {
	exec(vm *machine, sc *scope) (signal, error)
}

// signal tells the enclosing loop what a statement asks for.
type signal uint8

const (
	proceed signal = iota
	breakLoop
	continueLoop
)

type (
	constant  struct{ value Value }
	nameExpr  struct{ name string }
	listExpr  struct{ items []expression }
	tupleExpr struct{ items []expression }
	dictExpr  struct{ keys, values []expression }
	attribute struct {
		object expression
		name   string
	}
	subscript struct{ object, index expression }
	sliceExpr struct {
		object            expression
		start, stop, step expression
	} // absent bounds are nil
	callExpr struct {
		callee expression
		args   arguments
	}
	filterExpr struct {
		input expression
		name  string
		args  arguments
	} // input is nil in filter blocks
	testExpr struct {
		input expression
		name  string
		args  arguments
	}
	notExpr  struct{ operand expression }
	signExpr struct {
		operand  expression
		negative bool
	}
	andExpr    struct{ left, right expression }
	orExpr     struct{ left, right expression }
	arithmetic struct {
		op          string
		left, right expression
	}
	concatExpr struct{ parts []expression }
	comparison struct {
		first expression
		rest  []comparedTo
	}
	conditional struct{ test, then, otherwise expression } // otherwise may be nil
)

// comparedTo is one link of a comparison chain.
type comparedTo struct {
	op    string // == != < <= > >= in "not in"
	right expression
}

// arguments are those of a call, filter or test.
type arguments struct {
	positional []expression
	named      []namedExpression
	spread     expression // *args
	spreadDict expression // **kwargs
}

type namedExpression struct {
	name  string
	value expression
}

type (
	textStmt  struct{ text string }
	printStmt struct {
		value expression
		line  int
	}
	ifStmt struct {
		branches  []ifBranch
		otherwise []statement
		line      int
	}
	ifBranch struct {
		test expression
		body []statement
	}
	forStmt struct {
		target    target
		iterable  expression
		filter    expression // nil without one
		body      []statement
		otherwise []statement
		line      int
	}
	setStmt struct {
		target target
		value  expression
		line   int
	}
	setBlock struct {
		target target
		filter expression // nil without one
		body   []statement
		line   int
	}
	macroStmt struct {
		name string
		def  *macroDef
		line int
	}
	callStmt struct {
		call   *callExpr
		caller *macroDef
		line   int
	}
	filterStmt struct {
		filter expression
		body   []statement
		line   int
	}
	withStmt struct {
		targets []target
		values  []expression
		body    []statement
		line    int
	}
	groupStmt    struct{ body []statement } // generation
	breakStmt    struct{}
	continueStmt struct{}
)

// macroDef is the parsed form of a macro or of a call block's body.
type macroDef struct {
	name     string
	params   []string
	defaults []expression // of the last len(defaults) parameters
	body     []statement
	varargs  bool // the body uses varargs
	kwargs   bool // the body uses kwargs
	caller   bool // the body uses caller
}

// target is what an assignment writes: a name, ns.attribute, or a tuple.
type target struct {
	name      string
	attribute string
	tuple     []target
}
