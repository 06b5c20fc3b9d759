package load

import (
	"encoding/json"
	"math/rand/v2"
)

// Prompt is what a request asks: one of token ids, text, or the messages of a chat.
type Prompt struct {
	IDs      []int32
	Text     string
	Messages json.RawMessage
}

// Job is a prompt and the most tokens that its answer may have.
type Job struct {
	Prompt Prompt
	Output int
}

// Source gives the requests one after another; false = no more.
type Source func() (Job, bool)

// Synthetic describes prompts of random token ids. The same values give the same prompts.
type Synthetic struct {
	Input, Output Lengths
	Vocab         int // ids are below this
	Prefix        int // tokens that the prompts of a group begin with, on top of Input
	Groups        int // of shared prefixes; at least 1
	Seed          uint64
}

// Source draws requests without end.
func (s Synthetic) Source() Source {
	lengths := rand.New(rand.NewPCG(s.Seed, lengthStream))
	own := rand.New(rand.NewPCG(s.Seed, promptStream))
	return func() (Job, bool) {
		group := uint64(lengths.IntN(max(s.Groups, 1)))
		ids := make([]int32, 0, s.Prefix+s.Input.Draw(lengths))
		ids = appendIDs(ids, s.Prefix, s.Vocab, rand.New(rand.NewPCG(s.Seed+group*golden, sharedStream)))
		ids = appendIDs(ids, cap(ids)-len(ids), s.Vocab, own)
		return Job{Prompt{IDs: ids}, s.Output.Draw(lengths)}, true
	}
}

// golden spreads small numbers over 64 bits, so that neighbouring seeds and groups share no stream.
const golden = 0x9e3779b97f4a7c15

func appendIDs(ids []int32, n, vocab int, r *rand.Rand) []int32 {
	for range n {
		ids = append(ids, int32(r.IntN(vocab)))
	}
	return ids
}

// Limits cuts what does not fit a server's context; 0 = no limit.
type Limits struct{ Input, Output int }

func cut(n, limit int) int {
	if limit > 0 {
		return min(n, limit)
	}
	return n
}

// FromTrace makes a request of each row of a trace: prompts of random ids that share blocks where the rows name the same
// block. Behind the last row it begins again, with other tokens.
func FromTrace(trace []TraceRow, vocab int, l Limits, seed uint64) Source {
	own, i := rand.New(rand.NewPCG(seed, promptStream)), -1
	return func() (Job, bool) {
		i++
		row, seed := trace[i%len(trace)], seed+uint64(i/len(trace))<<48
		ids := make([]int32, 0, cut(row.Input, l.Input))
		for _, block := range row.Blocks {
			n := min(BlockTokens, cap(ids)-len(ids))
			ids = appendIDs(ids, n, vocab, rand.New(rand.NewPCG(seed+uint64(block)*golden, sharedStream)))
		}
		ids = appendIDs(ids, cap(ids)-len(ids), vocab, own)
		return Job{Prompt{IDs: ids}, cut(row.Output, l.Output)}, true
	}
}

// Repeat gives the jobs of a list over and over. A job without a length of its own draws one.
func Repeat(jobs []Job, output Lengths, l Limits, seed uint64) Source {
	lengths, i := rand.New(rand.NewPCG(seed, lengthStream)), 0
	return func() (Job, bool) {
		j := jobs[i%len(jobs)]
		i++
		if j.Output == 0 {
			j.Output = output.Draw(lengths)
		}
		j.Output = cut(j.Output, l.Output)
		if len(j.Prompt.IDs) > 0 {
			j.Prompt.IDs = j.Prompt.IDs[:cut(len(j.Prompt.IDs), l.Input)]
		}
		return j, true
	}
}
