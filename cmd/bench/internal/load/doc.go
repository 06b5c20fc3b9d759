// Package load sends requests to an OpenAI-compatible server at times that do not depend on its answers, and measures what
// comes back.
//
//	Arrivals, Source   when a request is meant to arrive, and what it asks (rates, traces, files of prompts)
//	Client             one request: body, connection, server-sent events, times of its tokens
//	Run                sends them and collects an Outcome each
//	Summarise          percentiles, rates, goodput, errors by kind: a Row
//
// Latencies count from the intended arrival. A generator that measures from when it got around to sending hides exactly
// the waiting that an overloaded server causes (coordinated omission); here it is in the figures, and what part of it the
// generator itself caused is reported beside them (Row.Late).
//
// Tokens are counted by the ids that the server returns (return_token_ids), else by its running usage
// (continuous_usage_stats), else as one for each chunk with text; the usage at the end corrects the count.
//
// With one concurrency instead of a rate (a closed loop) a request is meant to arrive when the one before it ended.
package load
