package ledger

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
		m := &machine{t: t}
		return func(c script.Command) string {
			out := m.exec(c)
			if m.Ledger != nil {
				if err := m.Check(m.held()); err != nil {
					t.Errorf("after %s %v: %v", c.Name, c.Args, err)
				}
			}
			return out
		}
	})
}

// machine executes the commands of a script and checks the books after each.
type machine struct {
	*Ledger
	t         *testing.T
	snapshots map[string]*Snapshot
}

func (m *machine) held() (all []*Snapshot) {
	for _, s := range m.snapshots {
		all = append(all, s)
	}
	return all
}

func (m *machine) exec(c script.Command) string {
	switch c.Name {
	case "config":
		*m = machine{t: m.t, snapshots: map[string]*Snapshot{}, Ledger: New(Config{
			Slots: c.Int("slots", 9), Blocks: c.Int("blocks", 9), Pages: c.Int("pages", 99), PageTokens: c.Int("page", 4), MaxPages: c.Int("max", 10),
			Scratch: c.Int("scratch", 0),
		})}
	case "prepare": // id:tokens or id:tokens:snapshot; tokens with a c: a chunk, with an l: the last chunk
		return m.prepare(c.Args)
	case "observe": // id block
		m.Observe(ID(c.Arg(0)), int32(c.Arg(1)))
	case "share": // id name tokens=; the block is the one read last
		src, _ := m.Blocks(ID(c.Arg(0)))
		m.snapshots[c.Args[1]] = m.Share(ID(c.Arg(0)), int32(c.Int("src", int(src))), c.Int("tokens", 0))
	case "drop":
		m.Drop(m.snapshots[c.Args[0]])
		delete(m.snapshots, c.Args[0])
	case "swapout":
		src, _ := m.Blocks(ID(c.Arg(0)))
		s := m.SwapOut(ID(c.Arg(0)), int32(c.Int("src", int(src))), c.Int("tokens", 0))
		if s.Scratch != 0 {
			return fmt.Sprintf("save slot %d, scratch block %d, pages %v\n", s.Slot, s.Scratch, s.Pages)
		}
		return fmt.Sprintf("save slot %d, block %d, pages %v\n", s.Slot, s.Block, s.Pages)
	case "release":
		m.Release(ID(c.Arg(0)))
	case "fits":
		return fmt.Sprintf("%v\n", m.Fits(c.Arg(0)))
	case "usage":
		u := m.Usage()
		text := fmt.Sprintf("slots %d/%d, blocks %d/%d, pages %d/%d, swapped %d, snapshots %d",
			u.Slots, u.TotalSlots, u.Blocks, u.TotalBlocks, u.Pages, u.TotalPages, u.Swapped, u.Snapshots)
		if u.TotalScratch > 0 {
			text += fmt.Sprintf(", scratch %d/%d", u.Scratch, u.TotalScratch)
		}
		return text + "\n"
	default:
		panic("unknown command " + c.Name)
	}
	return ""
}

func (m *machine) prepare(args []string) string {
	var needs []Need
	for _, a := range args {
		f := strings.Split(a, ":")
		id, _ := strconv.Atoi(f[0])
		tokens, _ := strconv.Atoi(strings.TrimRight(f[1], "cl"))
		n := Need{ID: ID(id), Tokens: tokens, Prefill: map[byte]Prefill{'c': Chunk, 'l': LastChunk}[f[1][len(f[1])-1]]}
		if len(f) > 2 {
			n.From = m.snapshots[f[2]]
		}
		needs = append(needs, n)
	}
	var c Changes
	if err := m.Prepare(needs, &c); err != nil {
		return err.Error() + "\n"
	}
	return show(&c)
}

func show(c *Changes) string {
	var b strings.Builder
	for _, o := range c.Opened {
		how := [...]string{"fresh", "restored", "swapped in"}[o.How]
		fmt.Fprintf(&b, "row %d: slot %d %s, src %d, dst %d", o.Row, o.Slot, how, o.Src, o.Dst)
		if o.Scratch != 0 {
			fmt.Fprintf(&b, ", load scratch block %d", o.Scratch)
		}
		if o.How == SwappedIn {
			fmt.Fprintf(&b, ", load pages %v", o.Pages)
		}
		b.WriteString("\n")
	}
	for _, p := range c.Copies {
		fmt.Fprintf(&b, "copy page %d to %d\n", p.From, p.To)
	}
	for _, e := range c.Table {
		fmt.Fprintf(&b, "table[%d][%d] = %d\n", e.Slot, e.Index, e.Page)
	}
	for _, r := range c.Reserved {
		fmt.Fprintf(&b, "dst[%d] = %d\n", r.Slot, r.Block)
	}
	for _, s := range c.Staged {
		fmt.Fprintf(&b, "row %d: scratch block %d", s.Row, s.Scratch)
		if s.Before {
			b.WriteString(", holds the state")
		}
		if !s.After {
			b.WriteString(", then free")
		}
		b.WriteString("\n")
	}
	if b.Len() == 0 {
		return "no change\n"
	}
	return b.String()
}
