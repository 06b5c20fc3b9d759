package api

import "context"

// Call is a request that was understood and not run yet. It runs once, as Answer or as Stream.
type Call interface {
	// Streams tells whether the request asks for chunks.
	Streams() bool
	// Answer runs the request and returns an answer to be written as JSON.
	Answer(ctx context.Context) (any, error)
	// Stream runs the request and hands each chunk of the answer to send, which may block as long as it likes; an error
	// of send ends the request. An error before the first chunk means that nothing was sent.
	Stream(ctx context.Context, send func(chunk any) error) error
}
