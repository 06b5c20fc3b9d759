package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"reprise/engine"
	"reprise/internal/golden"
)

func (r *running) openai() openai.Client {
	return openai.NewClient(option.WithBaseURL(r.url+"/v1"), option.WithAPIKey("none"), option.WithHTTPClient(r.client), option.WithMaxRetries(0))
}

const modelName = "demo-qwen35"

func chatParams(content string, n int64) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: modelName, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(content)},
		MaxTokens: openai.Int(n), Temperature: openai.Float(0),
	}
}

func TestOpenAIClient(t *testing.T) {
	r := start(t, Config{}, engine.Options{})
	c, ctx := r.openai(), context.Background()

	list, err := c.Models.List(ctx)
	check(t, err)
	if len(list.Data) != 1 || list.Data[0].ID != modelName {
		t.Errorf("%+v", list.Data)
	}
	_, err = c.Models.Get(ctx, "nope")
	var refused *openai.Error
	if !errors.As(err, &refused) || refused.StatusCode != 404 || refused.Code != "model_not_found" {
		t.Errorf("%v", err)
	}

	done, err := c.Completions.New(ctx, openai.CompletionNewParams{
		Model: modelName, Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("Once upon a")}, MaxTokens: openai.Int(5),
		Temperature: openai.Float(0), Logprobs: openai.Int(2), Echo: openai.Bool(true),
	})
	check(t, err)
	if l := done.Choices[0].Logprobs; !strings.HasPrefix(done.Choices[0].Text, "Once upon a time") || len(l.Tokens) != 9 || len(l.TextOffset) != 9 {
		t.Errorf("%+v", done.Choices[0])
	}

	whole, err := c.Chat.Completions.New(ctx, chatParams("Tell me a story about a fox.", 20))
	check(t, err)
	if whole.Usage.CompletionTokens != 20 || whole.Choices[0].FinishReason != "length" || whole.Choices[0].Message.Content == "" {
		t.Errorf("%+v", whole)
	}
	params := chatParams("Tell me a story about a fox.", 20)
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	stream := c.Chat.Completions.NewStreaming(ctx, params)
	defer stream.Close()
	var sum openai.ChatCompletionAccumulator
	for stream.Next() {
		if !sum.AddChunk(stream.Current()) {
			t.Error("the chunks do not add up")
		}
	}
	check(t, stream.Err())
	if sum.Choices[0].Message.Content != whole.Choices[0].Message.Content || sum.Usage.CompletionTokens != 20 || sum.Choices[0].FinishReason != "length" {
		t.Errorf("streamed %+v\nwhole %+v", sum.Choices, whole.Choices)
	}
}

// TestStreamsEqualSingleRuns runs prompts one by one and then all at once.
func TestStreamsEqualSingleRuns(t *testing.T) {
	r := start(t, Config{}, engine.Options{})
	c, ctx := r.openai(), context.Background()
	n := 64
	if testing.Short() {
		n = 12
	}
	want := make([]string, n)
	for i := range n {
		out, err := c.Chat.Completions.New(ctx, chatParams(fmt.Sprintf("Tell me about the number %d.", i), 12))
		check(t, err)
		want[i] = out.Choices[0].Message.Content
	}
	var wait sync.WaitGroup
	for i := range n {
		wait.Go(func() {
			stream := c.Chat.Completions.NewStreaming(ctx, chatParams(fmt.Sprintf("Tell me about the number %d.", i), 12))
			defer stream.Close()
			var got strings.Builder
			for stream.Next() {
				for _, choice := range stream.Current().Choices {
					got.WriteString(choice.Delta.Content)
				}
			}
			if err := stream.Err(); err != nil || got.String() != want[i] {
				t.Errorf("%d: %v, got %q, want %q", i, err, got.String(), want[i])
			}
		})
	}
	wait.Wait()
}

// TestGoldenThroughHTTP compares ids and log probabilities of token prompts with what an exact model answers.
func TestGoldenThroughHTTP(t *testing.T) {
	r := start(t, Config{}, engine.Options{})
	for i, c := range golden.Open(t, modelName).Cases {
		if len(c.Prompt)+len(c.Greedy) > 2048 || testing.Short() && i > 2 {
			continue
		}
		ids, err := json.Marshal(c.Prompt)
		check(t, err)
		body := fmt.Sprintf(`{"prompt":%s,"max_tokens":%d,"temperature":0,"ignore_eos":true,"logprobs":0,"return_token_ids":true}`, ids, len(c.Greedy))
		_, _, text := r.call(t, "POST", completions, body)
		var out struct {
			Choices []struct {
				IDs      []int32 `json:"token_ids"`
				Prompt   []int32 `json:"prompt_token_ids"`
				LogProbs struct {
					Tokens []float64 `json:"token_logprobs"`
				}
			}
		}
		check(t, json.Unmarshal(text, &out))
		got := out.Choices[0]
		if fmt.Sprint(got.IDs) != fmt.Sprint(c.Greedy) || fmt.Sprint(got.Prompt) != fmt.Sprint(c.Prompt) {
			t.Errorf("case %d: got %v, want %v", i, got.IDs, c.Greedy)
		}
		last := golden.LogProbs(c.Logits[len(c.Logits)-1])
		if d := math.Abs(got.LogProbs.Tokens[0] - last[c.Greedy[0]]); d > 2*golden.LogitTolerance*c.Scale() {
			t.Errorf("case %d: log probability off by %g", i, d)
		}
	}
}
