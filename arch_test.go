// Package reprise_test holds the rules of the house that a compiler does not check: who may import whom, no mutable
// package state, no environment variables outside cmd, a doc comment on every package.
package reprise_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// imports lists, for a folder and everything below it, the project packages that it may import besides itself and what
// lies below it. The longest matching folder decides. A trailing /* stands for a whole tree.
var imports = map[string][]string{
	"kernels":             {},
	"kernels/ref":         {"kernels"},
	"kernels/cpu":         {"kernels"},
	"kernels/cuda":        {"kernels"},
	"kernels/kerneltest":  {"kernels", "kernels/ref"},
	"kernels/kernelbench": {"kernels"},
	"weights":             {"kernels", "model"},
	"layers":              {"kernels", "model"},
	"sampler":             {"kernels"},
	"model":               {"kernels"},
	"ssm":                 {"layers", "model", "kernels"},
	"attention":           {"layers", "model", "kernels"},
	"model/configjson":    {"internal/plainjson"},
	"model/nemotron":      {"model", "model/configjson", "layers", "ssm", "attention", "weights", "kernels"},
	"model/qwen35":        {"model", "model/configjson", "layers", "ssm", "attention", "weights", "kernels"},
	"spec":                {"model", "sampler", "kernels"},
	"engine/sched":        {},
	"engine/states":       {"kernels", "ssm", "attention", "model"},
	"engine":              {"kernels/*", "model/*", "layers", "ssm", "attention", "sampler", "spec", "weights", "engine/*"},
	"tokenizer":           {"internal/plainjson"},
	"chat":                {"chat/*", "tokenizer"},
	"demo":                {"weights"},
	"server":              {"engine", "engine/*", "chat", "chat/*", "tokenizer", "sampler", "server/*"},
	"internal/e2e":        {},
	"internal/golden":     {"demo", "weights"},
	"internal/plainjson":  {},
	"internal/plot":       {},
	"cmd":                 {"*"},
}

type source struct {
	dir  string // slash-separated, relative to the root
	name string
	file *ast.File
}

func sources(t *testing.T) ([]source, *token.FileSet) {
	t.Helper()
	fset := token.NewFileSet()
	var out []source
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fset, p, text, parser.ParseComments)
		out = append(out, source{filepath.ToSlash(filepath.Dir(p)), p, f})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) == 0 {
		t.Fatal("no source files found")
	}
	return out, fset
}

func rule(dir string) (string, []string, bool) {
	for d := dir; d != "."; d = filepath.ToSlash(filepath.Dir(d)) {
		if allowed, ok := imports[d]; ok {
			return d, allowed, true
		}
	}
	return "", nil, false
}

func allows(owner string, allowed []string, target string) bool {
	if _, ruled := imports[target]; target == owner || strings.HasPrefix(target, owner+"/") && !ruled {
		return true
	}
	for _, a := range allowed {
		tree := strings.TrimSuffix(a, "*")
		if a == target || tree != a && (tree == "" || strings.HasPrefix(target, tree) || target+"/" == tree) {
			return true
		}
	}
	return false
}

func TestImportRules(t *testing.T) {
	files, _ := sources(t)
	for _, f := range files {
		owner, allowed, ok := rule(f.dir)
		if !ok {
			t.Errorf("%s: folder %s has no import rule; add one to arch_test.go", f.name, f.dir)
			continue
		}
		for _, spec := range f.file.Imports {
			path, _ := strconv.Unquote(spec.Path.Value)
			target, internal := strings.CutPrefix(path, "reprise/")
			switch {
			case internal && !allows(owner, allowed, target):
				t.Errorf("%s: %s may not import %s", f.name, owner, target)
			case !internal && owner == "engine/sched" && strings.Contains(path, "."):
				t.Errorf("%s: engine/sched imports the standard library only, not %s", f.name, path)
			}
		}
	}
}

func TestPackageDocs(t *testing.T) {
	files, _ := sources(t)
	documented := map[string]bool{}
	for _, f := range files {
		documented[f.dir] = documented[f.dir] || f.file.Doc != nil && len(f.file.Doc.Text()) > 20
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("package %s has no doc comment that says what lives there", dir)
		}
	}
}

func TestNoEnvironmentOutsideCmd(t *testing.T) {
	files, fset := sources(t)
	for _, f := range files {
		if strings.HasPrefix(f.dir, "cmd/") {
			continue
		}
		ast.Inspect(f.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if ok && isIdent(sel.X, "os") && slices.Contains([]string{"Getenv", "LookupEnv", "Environ"}, sel.Sel.Name) {
				t.Errorf("%s: os.%s outside cmd", fset.Position(sel.Pos()), sel.Sel.Name)
			}
			return true
		})
	}
}

func isIdent(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}

// TestNoMutableState allows package-level variables that are error values, embedded data, interface assertions, or
// tables that nothing writes after initialisation.
func TestNoMutableState(t *testing.T) {
	files, fset := sources(t)
	vars := map[string]map[string]*ast.ValueSpec{} // dir -> name
	for _, f := range files {
		for _, d := range f.file.Decls {
			gen, ok := d.(*ast.GenDecl)
			if !ok || gen.Tok != token.VAR {
				continue
			}
			for _, s := range gen.Specs {
				spec := s.(*ast.ValueSpec)
				if vars[f.dir] == nil {
					vars[f.dir] = map[string]*ast.ValueSpec{}
				}
				for _, n := range spec.Names {
					if n.Name != "_" {
						vars[f.dir][n.Name] = spec
					}
				}
				if synchronised(spec) {
					t.Errorf("%s: package-level %s is mutable state", fset.Position(spec.Pos()), spec.Names[0].Name)
				}
			}
		}
	}
	for _, f := range files {
		checkWrites(t, fset, f, vars[f.dir])
	}
}

// synchronised reports whether a variable's declared type only makes sense for state that changes.
func synchronised(spec *ast.ValueSpec) bool {
	found := false
	for _, e := range append([]ast.Expr{spec.Type}, spec.Values...) {
		if e == nil {
			continue
		}
		ast.Inspect(e, func(n ast.Node) bool {
			if _, ok := n.(*ast.FuncLit); ok {
				return false
			}
			if sel, ok := n.(*ast.SelectorExpr); ok && (isIdent(sel.X, "sync") && sel.Sel.Name != "OnceValue" || isIdent(sel.X, "atomic")) {
				found = true
			}
			return true
		})
	}
	return found
}

// checkWrites reports assignments to package variables, and their addresses taken, in functions other than init.
func checkWrites(t *testing.T, fset *token.FileSet, f source, vars map[string]*ast.ValueSpec) {
	global := func(e ast.Expr) *ast.Ident {
		for {
			switch x := e.(type) {
			case *ast.IndexExpr:
				e = x.X
			case *ast.SelectorExpr:
				e = x.X
			case *ast.ParenExpr:
				e = x.X
			case *ast.Ident:
				spec, ok := vars[x.Name]
				if !ok || x.Obj != nil && x.Obj.Decl != spec {
					return nil
				}
				return x
			default:
				return nil
			}
		}
	}
	report := func(e ast.Expr) {
		if id := global(e); id != nil {
			t.Errorf("%s: package variable %s is written or shared by address", fset.Position(id.Pos()), id.Name)
		}
	}
	for _, d := range f.file.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil || fn.Recv == nil && fn.Name.Name == "init" {
			continue
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch x := n.(type) {
			case *ast.AssignStmt:
				if x.Tok != token.DEFINE {
					for _, e := range x.Lhs {
						report(e)
					}
				}
			case *ast.IncDecStmt:
				report(x.X)
			case *ast.UnaryExpr:
				if _, whole := x.X.(*ast.Ident); x.Op == token.AND && whole {
					report(x.X)
				}
			}
			return true
		})
	}
}
