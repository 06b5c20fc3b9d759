package engine

import "reprise/kernels"

// collect waits for a step and hands its tokens out.
func (e *Engine) collect(l *lane) {
	err := e.dev.Wait(l.ticket)
	l.busy = false
	e.sched.Applied(&l.plan, l.out.accepted.host)
	if err != nil {
		e.fault(l, err)
		return
	}
	e.learn(l)
	e.stats.stepped(l)
	for i := range l.steps {
		r := &l.steps[i]
		if n := int(l.out.accepted.host[i]); n > 0 && !r.seq.ended {
			e.stats.stepRows.Add(1)
			e.stats.stepTokens.Add(int64(n))
			e.emit(l, r.seq, r.sample, n, kernels.Finish(l.out.finish.host[i]))
		}
	}
	for i := range l.prefills {
		if r := &l.prefills[i]; !r.seq.ended {
			e.prefilled(l, r, kernels.Finish(l.out.finish.host[len(l.steps)+i]))
		}
	}
	e.publishStats()
}

// emit hands out n tokens that were sampled at row first and behind it.
func (e *Engine) emit(l *lane, q *seq, first, n int, finish kernels.Finish) {
	u := q.update()
	for j := range n {
		t := l.token(first+j, q.request.LogProbs)
		q.tokens = append(q.tokens, t.ID)
		u.Tokens = append(u.Tokens, t)
	}
	e.stats.generatedTokens.Add(int64(n))
	switch finish {
	case kernels.FinishStop:
		u.Reason, u.StopID = Stop, q.tokens[len(q.tokens)-1]
	case kernels.FinishLength:
		u.Reason = Length
	}
	if u.Done() {
		e.end(q, u)
		return
	}
	q.publish(u)
}

// prefilled hands out the scores of a chunk and, behind the last one, the first token.
func (e *Engine) prefilled(l *lane, r *row, finish kernels.Finish) {
	q := r.seq
	if r.scored > 0 {
		u := q.update()
		for j := range r.scored {
			u.Prompt = append(u.Prompt, l.token(r.sample+j, q.request.PromptLogProbs))
		}
		q.publish(u)
	}
	switch {
	case !r.final:
	case q.request.MaxTokens == 0:
		u := q.update()
		u.Reason = Length
		e.end(q, u)
	default:
		e.emit(l, q, r.sample+r.scored, 1, finish)
	}
}

// token reads a sampled row; top is how many alternatives were asked for, -1 = no log probabilities.
func (l *lane) token(i, top int) Token {
	t := Token{ID: l.out.token[i]}
	if top < 0 {
		return t
	}
	t.LogProb, t.Rank = l.out.logProb[i], l.out.rank[i]
	if top > 0 {
		t.Top = make([]Alternative, 0, top)
		for at := i * l.rows.TopN; at < i*l.rows.TopN+top && l.out.topID[at] >= 0; at++ { // NaN logits have no order
			t.Top = append(t.Top, Alternative{l.out.topID[at], l.out.topProb[at]})
		}
	}
	return t
}
