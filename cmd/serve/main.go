// Command serve answers the OpenAI API over HTTP with one model.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"reprise/cmd/internal/cli"
	"reprise/server"
)

const usage = `usage: serve [MODEL] [flags]

Serves the OpenAI API with one model. Without a model it serves a small built-in one.
Flags that command lines for vLLM carry are accepted; a line says so where one has no effect.
`

// flags are those of this program alone.
type flags struct {
	model   cli.Model
	host    string
	port    int
	keys    []string
	origins []string
	prefix  string
	maxBody int64
	drain   time.Duration
	now     func() time.Time // the clock; tests have their own
}

func main() { cli.Main("serve", run) }

func parse(args []string) (*flags, error) {
	f := &flags{now: time.Now}
	fs := cli.NewFlags("serve", usage)
	fs.StringVar(&f.host, "host", "127.0.0.1", "address to listen on; 0.0.0.0 for all")
	fs.IntVar(&f.port, "port", 8000, "port to listen on; 0 for any that is free")
	fs.StringArrayVar(&f.keys, "api-key", nil, "key that clients must send (default: none); may be given several times")
	fs.StringArrayVar(&f.origins, "allowed-origins", nil, `origin of web pages that may call, "*" for all (default: only this server's own page)`)
	fs.StringVar(&f.prefix, "metrics-prefix", "reprise:", "first part of the names of all metrics")
	fs.Int64Var(&f.maxBody, "max-body-bytes", 32<<20, "largest request")
	fs.DurationVar(&f.drain, "shutdown-timeout", 30*time.Second, "how long running requests may take to finish after SIGTERM")
	f.model.Interactive = true
	f.model.Register(fs)
	rest, err := cli.Parse(fs, args)
	if err != nil {
		return nil, err
	}
	return f, errors.Join(f.check(fs), f.model.Positional(rest))
}

func (f *flags) check(fs *pflag.FlagSet) error {
	switch {
	case f.port < 0 || f.port > 65535:
		return cli.Usagef("--port %d is outside of [0, 65535]", f.port)
	case f.maxBody < 1:
		return cli.Usagef("--max-body-bytes %d is less than 1", f.maxBody)
	case f.drain < 0:
		return cli.Usagef("--shutdown-timeout %s is negative", f.drain)
	}
	for _, key := range f.keys {
		if key == "" {
			return cli.Usagef("--api-key is empty")
		}
	}
	return nil
}

func run(args []string) error {
	f, err := parse(args)
	if err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(200) // the heap is small beside the model, and requests are garbage
	}
	listener, err := listen(f)
	if err != nil {
		return err
	}
	defer listener.Close()
	s, err := server.New(server.Config{
		Model: f.model.Names()[0], Keys: f.keys, AllowedOrigins: f.origins, MetricsPrefix: f.prefix, MaxBody: f.maxBody,
		Version: cli.Version(), Log: f.model.Logger(),
	})
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	return serve(f, s, listener, signals)
}

func listen(f *flags) (net.Listener, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(f.host, strconv.Itoa(f.port)))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("--port %d: already in use on %s; another --port, or 0 for any", f.port, f.host)
	case err != nil:
		return nil, fmt.Errorf("cannot listen on --host %s --port %d: %w", f.host, f.port, err)
	}
	return l, nil
}

// serve answers 503 while the model loads, then requests, until a signal or a fault.
func serve(f *flags, s *server.Server, listener net.Listener, signals <-chan os.Signal) error {
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(listener) }()
	loaded := make(chan result, 1)
	go func() {
		l, err := f.model.Load(cli.LoadProgress())
		loaded <- result{l, err}
	}()
	var model *cli.Loaded
	select {
	case r := <-loaded:
		if r.err != nil {
			return r.err
		}
		model = r.model
	case err := <-failed:
		return err
	case <-signals: // nothing runs yet
		return nil
	}
	s.Ready(server.Backend{API: model.API(s.Observe), Stats: model.Engine.Stats, Err: model.Engine.Err, Abort: model.Engine.Abort})
	announce(f, model, listener.Addr())
	return answer(f, s, model, failed, signals)
}

type result struct {
	model *cli.Loaded
	err   error
}

// answer waits for the end.
func answer(f *flags, s *server.Server, model *cli.Loaded, failed <-chan error, signals <-chan os.Signal) error {
	watch := time.NewTicker(time.Second)
	defer watch.Stop()
	for {
		select {
		case err := <-failed:
			return err
		case <-signals:
			return drain(f, s, model, signals)
		case <-watch.C:
			if err := model.Engine.Err(); err != nil {
				return err
			}
		}
	}
}

// together is how close signals may come to count as one: a supervisor and a terminal signal the process and its group.
const together = 200 * time.Millisecond

// drain finishes what runs, within a bound; a second signal ends at once.
func drain(f *flags, s *server.Server, model *cli.Loaded, signals <-chan os.Signal) error {
	fmt.Fprintf(os.Stderr, "serve: finishing running requests (at most %s; a second signal ends at once)\n", f.drain)
	ctx, cancel := context.WithTimeout(context.Background(), f.drain)
	defer cancel()
	late, done, first := make(chan error, 1), make(chan error, 1), f.now()
	go func() {
		if err := s.Shutdown(ctx); err != nil {
			late <- err
		}
		done <- model.Close()
	}()
	watch := time.NewTicker(time.Second)
	defer watch.Stop()
	for { // the only writer of lines, so that none is cut by another
		select {
		case <-watch.C: // what hangs does not close
			if err := model.Engine.Err(); err != nil {
				return err
			}
		case err := <-late:
			fmt.Fprintf(os.Stderr, "serve: %v\n", err)
		case err := <-done:
			return err
		case <-signals:
			if f.now().Sub(first) > together {
				return errors.New("ended by a second signal")
			}
		}
	}
}

// announce says what is served, where, and how to try it.
func announce(f *flags, model *cli.Loaded, address net.Addr) {
	for _, line := range model.Warnings {
		fmt.Fprintln(os.Stderr, "warning:", line)
	}
	fmt.Fprint(os.Stderr, model.Engine.Plan())
	url := "http://" + shown(f.host, address)
	name, auth := f.model.Names()[0], ""
	if len(f.keys) > 0 {
		auth = ` -H "Authorization: Bearer $KEY"`
	}
	fmt.Printf("Serving %s on %s (%s); a chat page is there too. Try:\n", name, url, model.Device.Name())
	if model.Tokenizer == nil {
		fmt.Printf("curl %s/v1/completions%s -d '{\"prompt\":[1,2,3]}'\n", url, auth)
		return
	}
	const body = `{"messages":[{"role":"user","content":"Tell me a story about a fox."}],"max_tokens":100}`
	fmt.Printf("curl %s/v1/chat/completions%s -H 'Content-Type: application/json' -d '%s'\n", url, auth, body)
}

// shown is an address that can be called: a wildcard is not.
func shown(host string, address net.Addr) string {
	_, port, err := net.SplitHostPort(address.String())
	if err != nil {
		return address.String()
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}
