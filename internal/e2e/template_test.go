package e2e

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestTemplatesFromStrangers: a chat template that is broken or never ends costs the chats and nothing else.
func TestTemplatesFromStrangers(t *testing.T) {
	base := golden(t, "qwen35-dense").withText(t, "demo-qwen35")
	for _, c := range []struct{ name, template, warning, answer string }{
		{"garbage", "{% for %}{{", "chats are refused", "chat template"},
		{"binary", "{{ \x00\xff }}", "chats are refused", "chat template"},
		{"deep", strings.Repeat("{% if a %}", 100_000), "chats are refused", "chat template"},
		{"endless loop", "{% for i in range(1000000000) %}{% for j in range(1000000000) %}{% endfor %}{% endfor %}", "", "chat template"},
		{"endless output", "{% for i in range(1000000000) %}xxxxxxxxxxxxxxxx{% endfor %}", "", "chat template"},
		{"endless recursion", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "", "chat template"},
		{"huge string", "{{ 'x' * 10000000000 }}", "", "chat template"},
		{"growing list", "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = ns.l + ns.l %}{% endfor %}", "", "chat template"},
		{"raises", "{{ raise_exception('no') }}", "", "no"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := base.clone()
			f["chat_template.jinja"] = []byte(c.template)
			s := serve(t, "--model", f.write(t), "--load-format", "dummy", "--max-num-seqs", "2")
			if text := s.stderr.String(); !strings.Contains(text, c.warning) {
				t.Errorf("no warning %q in %q", c.warning, text)
			}
			begin := time.Now()
			a, err := s.post(context.Background(), "/v1/chat/completions", `{"messages":[{"role":"user","content":"Hi"}],"max_tokens":2}`)
			if err != nil || a.status != http.StatusBadRequest || !strings.Contains(a.body, c.answer) {
				t.Errorf("chat: %d %.300s %v", a.status, a.body, err)
			}
			if d := time.Since(begin); d > endWithin {
				t.Errorf("answered after %s", d)
			}
			s.must("/v1/completions", `{"prompt":"Once","max_tokens":2}`)
			s.terminate(endWithin)
			if peak := s.peakBytes(); peak > 4*peakMemory && !racing {
				t.Errorf("it took %d MB", peak>>20)
			}
		})
	}
}
