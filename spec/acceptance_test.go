package spec

import "testing"

func TestAcceptance(t *testing.T) {
	var a Acceptance
	for _, row := range [][2]int{{0, 0}, {3, 0}, {3, 3}, {1, 1}, {2, 1}} {
		a.Add(row[0], row[1])
	}
	want := Acceptance{Steps: 4, Drafted: 9, Accepted: 5}
	want.Position[0], want.Position[1], want.Position[2] = Position{4, 3}, Position{3, 1}, Position{2, 1}
	if a != want {
		t.Errorf("%+v, want %+v", a, want)
	}
	if a.Rate(0) != 0.75 || a.Rate(5) != 0 || a.TokensAStep() != 2.25 {
		t.Errorf("rates %g and %g, %g tokens a step", a.Rate(0), a.Rate(5), a.TokensAStep())
	}
	if (&Acceptance{}).TokensAStep() != 1 {
		t.Error("nothing drafted is one token a step")
	}
}

// TestRecordForgets: a request that turns hard to predict is believed so after some rows.
func TestRecordForgets(t *testing.T) {
	var r Record
	for range 500 {
		r.add(3, 3, ownMemory)
	}
	if p := r.chance(2, 0, othersWeight); p < 0.8 {
		t.Errorf("chance %g behind 500 accepted rows", p)
	}
	for range 100 {
		r.add(3, 0, ownMemory)
	}
	if p := r.chance(0, 1, othersWeight); p > 0.3 {
		t.Errorf("chance %g behind 100 rejected rows", p)
	}
	if p := r.chance(1, 0, 1e-9); p < 0.99 {
		t.Errorf("drafts behind a rejected one were counted as tried: %g", p)
	}
}

// TestDepthFixed never tries anything.
func TestDepthFixed(t *testing.T) {
	d := NewDepth(3, true)
	for rows := range 100 {
		if got := d.Next(rows, nil); got != 3 {
			t.Fatalf("depth %d", got)
		}
	}
}

// TestDepthFollowsTheText: a request whose drafts stop being accepted is decoded plainly soon, and drafts again once they
// are.
func TestDepthFollowsTheText(t *testing.T) {
	d := NewDepth(3, false)
	m := &machine{Rand: newRand(), plain: 10, each: 3, chance: 0.9}
	m.rate(d, 1, 2000)
	if d.current != 3 {
		t.Errorf("depth %d of easy text", d.current)
	}
	m.chance = 0
	m.rate(d, 1, 400)
	if d.current != 0 {
		t.Errorf("depth %d of hard text", d.current)
	}
	m.chance = 0.9
	m.rate(d, 1, 4000)
	if d.current < 2 {
		t.Errorf("depth %d of text that is easy again", d.current)
	}
}
