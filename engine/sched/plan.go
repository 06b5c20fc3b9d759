package sched

// planner fills one plan.
type planner struct {
	*Scheduler
	plan        *Plan
	left        int  // tokens of the budget
	prefillLeft int  // of these, what prefill rows may take
	noPrompts   bool // this step has none
}

// Schedule writes the next step into p. It changes no request: a plan that is not committed never happened.
func (s *Scheduler) Schedule(p *Plan) {
	p.reset()
	pl := planner{Scheduler: s, plan: p, left: s.config.MaxTokens, prefillLeft: s.config.MaxTokens}
	p.T = pl.width()
	steps, rows := pl.count()
	if steps > 0 && s.config.MixedPrefill != 0 {
		pl.prefillLeft = max(s.config.MixedPrefill, 0)
		pl.noPrompts = pl.prefillLeft == 0
	}
	if rows*p.T > s.config.MaxTokens {
		pl.takeTurns()
	} else {
		pl.serveAll()
		pl.admitAll()
	}
	if len(p.Steps) == 0 {
		p.T = 1
	}
}

// width is the tokens that step rows are padded to: those of the deepest request, within the budget.
func (pl *planner) width() int {
	if pl.relief.noDrafts {
		return 1
	}
	drafts := 0
	for _, where := range [...]place{running, preempted} {
		for _, r := range pl.queues[where] {
			if !r.prefilling() && !r.full() {
				drafts = max(drafts, pl.want(r)-1)
			}
		}
	}
	return min(1+drafts, pl.config.MaxTokens)
}

// want is the tokens of the request's next step row: never more than the sequence has room for.
func (pl *planner) want(r *request) int { return min(1+r.drafts, r.limit-1-r.low) }

// count is the running requests that want a step row, and all that want a row.
func (pl *planner) count() (steps, rows int) {
	for _, r := range pl.queues[running] {
		switch {
		case r.prefilling():
			rows++
		case !r.full():
			steps, rows = steps+1, rows+1
		}
	}
	return steps, rows
}

// serveAll gives every running request its row; prompts share what step rows leave, first come first served.
func (pl *planner) serveAll() {
	for _, r := range pl.queues[running] {
		if !r.prefilling() && !r.full() {
			pl.step(r)
		}
	}
	for _, r := range pl.queues[running] {
		if r.prefilling() {
			pl.prefill(r, pl.config.MaxChunk)
		}
	}
}

// takeTurns serves as many running requests as the budget allows, with T tokens at most, beginning with the first that
// the last step left out.
func (pl *planner) takeTurns() {
	rows := pl.queues[running]
	first := 0
	for first < len(rows) && rows[first].seq < pl.turn {
		first++
	}
	for i := range rows {
		r := rows[(first+i)%len(rows)]
		if r.full() || pl.serve(r) {
			continue
		}
		if pl.plan.next == 0 {
			pl.plan.next = r.seq
		}
	}
}

// serve gives a request its row; false = its turn comes with the next step.
func (pl *planner) serve(r *request) bool {
	if r.prefilling() {
		return pl.noPrompts || pl.prefill(r, min(pl.plan.T, pl.config.MaxChunk))
	}
	return pl.step(r)
}

// admitAll admits requests while the budget can give each running one a row.
func (pl *planner) admitAll() {
	if pl.paused && len(pl.queues[running]) > 0 {
		return
	}
	for _, where := range [...]place{preempted, waiting} {
		for _, r := range pl.queues[where] {
			if !pl.seat(r) || !pl.admission(r) {
				return
			}
			pl.plan.Admitted = append(pl.plan.Admitted, Admission{r.id, r.swapped})
		}
	}
}

// seat reports whether one more request may run: MaxSeqs, relief, and a row for each in every step.
func (pl *planner) seat(r *request) bool {
	admitted := len(pl.plan.Admitted)
	n := len(pl.queues[running]) + admitted
	if n >= pl.config.MaxSeqs || admitted == pl.relief.admissions {
		return false
	}
	return n == 0 || (n+1)*max(pl.plan.T, 1+r.drafts) <= pl.config.MaxTokens
}

func (pl *planner) admission(r *request) bool {
	if r.prefilling() {
		return pl.prefill(r, pl.config.MaxChunk)
	}
	return pl.step(r)
}

// step plans a step row if the budget has room for a padded one.
func (pl *planner) step(r *request) bool {
	p := pl.plan
	if pl.left < p.T {
		return false
	}
	pl.left -= p.T
	n := min(pl.want(r), p.T)
	p.Steps = append(p.Steps, StepRow{r.id, n, min(r.high+n, r.limit-1)})
	return true
}

// prefill plans the next chunk of a prompt, of at most limit tokens, if the budget has any left.
func (pl *planner) prefill(r *request, limit int) bool {
	n := min(r.prompt-r.high, limit, pl.left, pl.prefillLeft)
	if n <= 0 {
		return false
	}
	pl.left -= n
	pl.prefillLeft -= n
	p := pl.plan
	p.Prefills = append(p.Prefills, PrefillRow{r.id, r.high, n, r.high+n == r.prompt, r.prompt})
	return true
}
