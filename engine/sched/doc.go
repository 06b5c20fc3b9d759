// Package sched decides which requests take part in the next step and with how many tokens.
//
// A Scheduler is a pure state machine: no clock, no device, no goroutine; the same calls give the same plans. A request
// has one counter, the tokens in its state, that catches up with the tokens it is known to have: prompt chunks, decode
// and verify are one case. The life of a step:
//
//	s.Schedule(&p)        plan; changes nothing, may be called again
//	(the caller makes room for p; if it cannot: s.Relieve(&p) says what to give up, then plan again)
//	s.Commit(&p)          p is launched: its rows are in flight
//	s.Schedule(&q) ...    the host is one step behind: q is planned before the results of p are known
//	s.Applied(&p, acc)    the results of p: how many tokens of each row count
//	s.Remove(id)          finished or cancelled, whenever that is known; rows still in flight are forgotten
//
// Policy:
//   - Running requests come first, in order of admission: step rows, then running prompts; then preempted requests, then
//     new ones, each first come first served. What does not fit blocks what is behind it.
//   - The budget counts padded tokens: a step row costs the plan's T. At most MaxSeqs requests run, and no more than the
//     budget can give one row each, so MaxTokens < MaxSeqs means that fewer run. When drafts deepen afterwards and the
//     rows no longer fit, they take turns: a step begins with the first row that the last one left out.
//   - Running requests wait for the whole step, so a step with step rows takes Config.MixedPrefill prompt tokens at most. How
//     many that should be depends on how long they take: the caller measures, and says so by SetMixedPrefill.
//   - A prompt's pages are asked for all at once (Upper), so that a prompt once begun is not stopped half way.
//   - Short of memory: admissions are given up first, from the youngest, then drafts, both for this plan only; then the
//     request admitted last is preempted. After that nothing is admitted until a running request leaves, so nothing is swapped in and out in
//     turns. Preempted requests come back before anything new and in their old order; since every request ends, none
//     starves.
//
// Not here: pages, slots and blocks (engine/states), what tokens are (engine), time.
package sched
