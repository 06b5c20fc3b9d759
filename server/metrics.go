package server

import (
	"fmt"
	"net/http"
	"regexp"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/model"

	"reprise/engine"
	"reprise/server/api"
)

// metrics has a registry of its own: several servers may live in one process.
type metrics struct {
	registry   *prometheus.Registry
	success    *prometheus.CounterVec
	firstToken prometheus.Observer
	perToken   prometheus.Observer
	whole      prometheus.Observer
}

// Bounds of the histograms, in seconds.
var (
	firstTokenBuckets = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	perTokenBuckets   = []float64{.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	wholeBuckets      = []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
)

func newMetrics(prefix, name string, stats func() engine.Stats) (*metrics, error) {
	if !model.LegacyValidation.IsValidMetricName(prefix + "x") {
		return nil, fmt.Errorf("--metrics-prefix %q: metric names are made of letters, digits, _ and : and do not start with a digit", prefix)
	}
	labels := prometheus.Labels{"model_name": name}
	m := &metrics{registry: prometheus.NewRegistry()}
	histogram := func(name, help string, buckets []float64) prometheus.Observer {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: buckets, ConstLabels: labels})
		m.registry.MustRegister(h)
		return h
	}
	m.firstToken = histogram("time_to_first_token_seconds", "From the arrival of a request to its first token.", firstTokenBuckets)
	m.perToken = histogram("time_per_output_token_seconds", "Mean time between the tokens of a request behind the first.", perTokenBuckets)
	m.whole = histogram("e2e_request_latency_seconds", "From the arrival of a request to its end.", wholeBuckets)
	m.success = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: prefix + "request_success_total", Help: "Ended requests by finish reason.", ConstLabels: labels,
	}, []string{"finished_reason"})
	for _, reason := range []string{"stop", "length", "abort", "error"} {
		m.success.WithLabelValues(reason)
	}
	m.registry.MustRegister(m.success, newEngineCollector(prefix, labels, stats),
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(liveHeap)),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m, nil
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

func (m *metrics) observe(o api.Outcome) {
	m.success.WithLabelValues(o.Reason).Inc()
	if o.Tokens > 0 {
		m.firstToken.Observe(o.FirstToken.Seconds())
	}
	if o.Tokens > 1 {
		m.perToken.Observe(o.PerToken.Seconds())
	}
	if o.Reason == "stop" || o.Reason == "length" {
		m.whole.Observe(o.Whole.Seconds())
	}
}

// liveHeap is go_gc_heap_live_bytes: what the last collection found in use, which a leak moves and traffic does not.
var liveHeap = collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile(`^/gc/heap/live:bytes$`)}

// engineMetric is a number that the engine keeps.
type engineMetric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(engine.Stats) float64
}

// engineCollector reads all of the engine's numbers at once when somebody asks.
type engineCollector struct {
	metrics []engineMetric
	stats   func() engine.Stats
}

func newEngineCollector(prefix string, labels prometheus.Labels, stats func() engine.Stats) *engineCollector {
	c := &engineCollector{stats: stats}
	add := func(kind prometheus.ValueType, name, help string, read func(engine.Stats) float64) {
		c.metrics = append(c.metrics, engineMetric{prometheus.NewDesc(prefix+name, help, nil, labels), kind, read})
	}
	none := func(engine.Stats) float64 { return 0 }
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	add(gauge, "num_requests_running", "Sequences that run.", func(s engine.Stats) float64 { return float64(s.Running) })
	add(gauge, "num_requests_waiting", "Sequences that wait.", func(s engine.Stats) float64 { return float64(s.Waiting) })
	add(gauge, "kv_cache_usage_perc", "Share of the KV pages in use, 1 = all.", func(s engine.Stats) float64 { return s.KVUsage })
	add(gauge, "state_bytes_per_sequence", "Recurrent state of a sequence, in all copies.", func(s engine.Stats) float64 { return float64(s.Footprint.State) })
	add(gauge, "replay_bytes_per_sequence", "Replay buffers of a sequence.", func(s engine.Stats) float64 { return float64(s.Footprint.Replay) })
	add(gauge, "kv_cache_bytes_per_token", "KV cache of a token.", func(s engine.Stats) float64 { return float64(s.Footprint.Token) })
	add(gauge, "max_num_seqs", "Sequences that run at once at most.", func(s engine.Stats) float64 { return float64(s.Footprint.Most) })
	add(counter, "prompt_tokens_total", "Tokens of prompts.", func(s engine.Stats) float64 { return float64(s.PromptTokens) })
	add(counter, "generation_tokens_total", "Generated tokens.", func(s engine.Stats) float64 { return float64(s.GeneratedTokens) })
	add(counter, "num_preemptions_total", "Sequences that made room for others.", func(s engine.Stats) float64 { return float64(s.Preemptions) })
	add(counter, "prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", none)
	add(counter, "prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", none)
	add(counter, "spec_decode_num_drafts_total", "Verified drafts.", func(s engine.Stats) float64 { return float64(s.Drafts.Steps) })
	add(counter, "spec_decode_num_draft_tokens_total", "Tokens of verified drafts.", func(s engine.Stats) float64 { return float64(s.Drafts.Drafted) })
	add(counter, "spec_decode_num_accepted_tokens_total", "Accepted draft tokens.", func(s engine.Stats) float64 { return float64(s.Drafts.Accepted) })
	add(gauge, "spec_decode_depth", "Drafts a sequence that the last step proposed; adaptive depth is at 0 where they do not pay.", func(s engine.Stats) float64 { return float64(s.Depth) })
	return c
}

// Describe implements prometheus.Collector.
func (c *engineCollector) Describe(out chan<- *prometheus.Desc) {
	for _, m := range c.metrics {
		out <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c *engineCollector) Collect(out chan<- prometheus.Metric) {
	s := c.stats()
	for _, m := range c.metrics {
		out <- prometheus.MustNewConstMetric(m.desc, m.kind, m.read(s))
	}
}
