package script

import (
	"strings"
	"testing"
)

func TestReplayRewritesOutputsOnly(t *testing.T) {
	in := "# note\nset 3 by=4\nget\n----\nold\n# old too\n\n# only a comment\n\nget\n\nget\n----\n"
	want := "# note\nset 3 by=4\nget\n----\n7\n\n# only a comment\n\nget\n----\n7\n\nget\n----\n7\n"
	value := 0
	exec := func(c Command) string {
		if c.Name == "set" {
			value = c.Arg(0) + c.Int("by", 0) + c.Int("absent", 0)
			return ""
		}
		return "7\n"
	}
	got := string(Replay([]byte(in), exec))
	if got != want || value != 7 {
		t.Errorf("got\n%s\nvalue %d", got, value)
	}
	if again := string(Replay([]byte(got), exec)); again != got {
		t.Errorf("a second pass changed\n%s", again)
	}
}

func TestFirstDifference(t *testing.T) {
	d := firstDifference([]byte("a\nb\n"), []byte("a\nc\n"))
	if !strings.Contains(d, "line 2") || !strings.Contains(d, `"c"`) {
		t.Error(d)
	}
	if d := firstDifference([]byte("a"), []byte("a\nb")); !strings.Contains(d, "(end)") {
		t.Error(d)
	}
}
