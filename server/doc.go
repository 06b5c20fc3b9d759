// Package server puts an api.API behind HTTP: the routes of the OpenAI API and a few of vLLM's, event streams, errors,
// request limits, keys, health, metrics and a small chat page.
//
// Not here: what a request means and what an answer looks like (server/api), the engine, and the flags (cmd).
package server
