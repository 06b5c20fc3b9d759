package sched

import (
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"reprise/engine/internal/script"
)

var update = flag.Bool("update", false, "rewrite the expected traces in testdata")

func TestScripts(t *testing.T) {
	script.Run(t, "testdata/*.txt", *update, func(t *testing.T) func(script.Command) string {
		return (&machine{}).exec
	})
}

// machine executes the commands of a script, plans in flight included.
type machine struct {
	*Scheduler
	planned *Plan
	flying  []*Plan
}

func (m *machine) exec(c script.Command) string {
	switch c.Name {
	case "config":
		return m.configure(c)
	case "add":
		return m.add(c)
	case "schedule": // plan and launch
		m.plan()
		return m.launch(true)
	case "plan": // plan only
		return m.plan()
	case "launch": // the plan of "plan"
		return m.launch(false)
	case "apply": // results of the oldest plan in flight; id=accepted, all tokens by default
		return m.apply(c)
	case "drafts":
		m.SetDrafts(ID(c.Arg(0)), c.Arg(1))
	case "mixed": // prompt tokens beside step rows from now on
		m.SetMixedPrefill(c.Arg(0))
	case "remove":
		return fmt.Sprintf("known %v\n", m.Remove(ID(c.Arg(0))))
	case "relieve":
		what, id := m.Relieve(m.planned)
		return fmt.Sprintf("%v %d\n", what, id)
	case "preempt":
		m.Preempt(ID(c.Arg(0)), c.Args[1] == "swapped")
	case "state":
		return m.state()
	default:
		panic("unknown command " + c.Name)
	}
	return ""
}

func (m *machine) configure(c script.Command) string {
	s, err := New(Config{
		MaxSeqs: c.Int("seqs", 0), MaxTokens: c.Int("tokens", 0), MaxLen: c.Int("len", 100),
		MaxChunk: c.Int("chunk", 0), MixedPrefill: c.Int("mixed", 0),
	})
	if err != nil {
		return err.Error() + "\n"
	}
	*m = machine{Scheduler: s}
	return ""
}

func (m *machine) add(c script.Command) string {
	err := m.Add(Request{
		ID: ID(c.Arg(0)), Prompt: c.Int("prompt", 0), Limit: c.Int("limit", 0), Drafts: c.Int("drafts", 0),
		Computed: c.Int("computed", 0),
	})
	if err != nil {
		return err.Error() + "\n"
	}
	return ""
}

func (m *machine) plan() string {
	m.planned = &Plan{}
	m.Schedule(m.planned)
	return show(m.planned)
}

func (m *machine) launch(trace bool) string {
	p := m.planned
	m.Commit(p)
	if !p.Empty() {
		m.flying = append(m.flying, p)
	}
	if trace {
		return show(p)
	}
	return ""
}

func show(p *Plan) string {
	if p.Empty() {
		return "nothing\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d tokens, T=%d", p.Tokens(), p.T)
	for _, a := range p.Admitted {
		fmt.Fprintf(&b, ", admit %d", a.ID)
		if a.Swapped {
			b.WriteString(" swapped")
		}
	}
	b.WriteString("\n")
	for _, r := range p.Steps {
		fmt.Fprintf(&b, "  %d: step %d, upper %d\n", r.ID, r.N, r.Upper)
	}
	for _, r := range p.Prefills {
		final := ""
		if r.Final {
			final = " final"
		}
		fmt.Fprintf(&b, "  %d: prefill [%d,%d)%s, upper %d\n", r.ID, r.Start, r.Start+r.N, final, r.Upper)
	}
	return b.String()
}

func (m *machine) apply(c script.Command) string {
	if len(m.flying) == 0 {
		return "nothing in flight\n"
	}
	p := m.flying[0]
	m.flying = m.flying[1:]
	accepted := make([]int32, len(p.Steps)+len(p.Prefills))
	for i, r := range p.Steps {
		accepted[i] = int32(c.Int(strconv.FormatInt(r.ID, 10), r.N))
	}
	m.Applied(p, accepted)
	return ""
}

func (m *machine) state() string {
	var b strings.Builder
	for where, name := range [...]string{"waiting", "preempted", "running"} {
		b.WriteString(name + ":")
		for _, r := range m.queues[where] {
			fmt.Fprintf(&b, " %d(%d", r.id, r.low)
			if r.high != r.low {
				fmt.Fprintf(&b, "..%d", r.high)
			}
			fmt.Fprintf(&b, "/%d)", r.prompt)
		}
		b.WriteString("\n")
	}
	return b.String()
}
