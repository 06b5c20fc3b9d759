package load

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// BenchmarkStreams reads 512 streams at once over the loopback device, as fast as they come, one event a write: the time
// of an operation is that of one event on both sides together.
func BenchmarkStreams(b *testing.B) {
	const streams = 512
	tokens := max(b.N/streams, 1)
	begin := []byte(`data: ` + strings.Replace(completionChunk, "[5,6]", "[5]", 1) + "\n\n")
	end := []byte(`data: {"choices":[{"text":"","finish_reason":"length","token_ids":[5]}]}` + "\n\ndata: [DONE]\n\n")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		flush := http.NewResponseController(w).Flush
		for range tokens - 1 {
			_, _ = w.Write(begin)
			_ = flush()
		}
		_, _ = w.Write(end)
	})}
	go s.Serve(l)
	defer s.Close()
	c := NewClient("http://"+l.Addr().String(), "", time.Minute, nil)
	defer c.Close()
	b.ReportAllocs()
	b.ResetTimer()
	all, err := Run(context.Background(), c, Plan{Source: fixedSource(tokens), Concurrency: streams, Requests: streams}, nil)
	if err != nil {
		b.Fatal(err)
	}
	for _, o := range all {
		if o.Failure != nil {
			b.Fatal(o.Failure)
		}
	}
}
