package spec

// MaxDepth bounds the drafts a step.
const MaxDepth = 7

// Acceptance counts what became of drafts. The first draft a step has position 0.
type Acceptance struct {
	Steps    int64 // rows that verified at least one draft
	Drafted  int64 // drafts that were verified
	Accepted int64
	Position [MaxDepth]Position
}

// Position is one position's share of Acceptance.
type Position struct{ Drafted, Accepted int64 }

// Add counts a row that verified so many drafts.
func (a *Acceptance) Add(drafted, accepted int) {
	if drafted <= 0 {
		return
	}
	a.Steps++
	a.Drafted += int64(drafted)
	a.Accepted += int64(accepted)
	for i := range min(drafted, MaxDepth) {
		a.Position[i].Drafted++
		if i < accepted {
			a.Position[i].Accepted++
		}
	}
}

// Rate is the share of drafts at a position that were accepted; those behind a rejected one were not.
func (a *Acceptance) Rate(position int) float64 {
	p := a.Position[position]
	return float64(p.Accepted) / float64(max(p.Drafted, 1))
}

// TokensAStep is the mean number of tokens of rows that verified drafts: one, and the accepted.
func (a *Acceptance) TokensAStep() float64 {
	return 1 + float64(a.Accepted)/float64(max(a.Steps, 1))
}

// Record remembers how well drafts of one source did lately: of a request, or of all.
type Record struct{ tried, hit [MaxDepth]float64 }

// add notes a row. Nothing is known about drafts behind the first rejected one.
func (r *Record) add(drafted, accepted int, memory float64) {
	for i := range min(drafted, accepted+1, MaxDepth) {
		r.tried[i] = r.tried[i]*memory + 1
		r.hit[i] *= memory
		if i < accepted {
			r.hit[i]++
		}
	}
}

// chance is the probability that a draft is accepted if those before it were, given what others' was and how many trials
// that weighs.
func (r *Record) chance(position int, others, weight float64) float64 {
	return (r.hit[position] + others*weight) / (r.tried[position] + weight)
}
