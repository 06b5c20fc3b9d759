// Package model is the contract between the engine and a model family: what a model needs (Spec), what a step gives
// it (Batch) and what it answers (Model, MTP). Families live below it and never know each other.
//
// Not here: weights' names and mathematics (model/nemotron, model/qwen35), layers shared by families (layers, ssm,
// attention), ownership of state (engine/states).
package model

import (
	"reprise/kernels"
)

// Spec is what the engine must know of a model before its weights are read.
type Spec struct {
	Family string // "nemotron_h", "qwen3_5", ...
	Hidden int
	Vocab  int // rows of the embedding and of the logits
	MaxLen int // positions the model was made for

	Mamba2       kernels.Mamba2Dims // of all Mamba-2 layers, if Mamba2Layers > 0
	Mamba2Layers int
	Delta        kernels.DeltaDims // of all GDN layers, if DeltaLayers > 0
	DeltaLayers  int
	State        kernels.StateFormat // the config's format of recurrent state

	QHeads, KVHeads, HeadDim int
	AttentionLayers          int
	FP8KV                    bool // the quantisation config declares an FP8 KV cache

	Experts, TopK int // routed experts of an MoE layer and how many a token takes; 0 = dense

	MTP *MTPSpec // nil without an MTP head

	EOS []int32 // end-of-sequence ids of config.json; generation_config.json may add more
}

// MTPSpec describes the multi-token-prediction head: its attention layers have a KV cache of their own.
type MTPSpec struct {
	AttentionLayers int
	Depths          int // num_nextn_predict_layers: weights' depths, used in turn
}

// RowKind says how a row is computed; it is carried, never guessed from lengths.
type RowKind uint8

// Kinds of rows.
const (
	StepRow    RowKind = iota // decode or verify: at most T tokens behind the committed ones
	PrefillRow                // a chunk of known tokens
)

// Batch is one step: Step.Count rows of T tokens, then packed prefill rows. All matrices of a forward pass have
// Tokens rows.
type Batch struct {
	Tokens  int
	Step    kernels.Rows
	Prefill kernels.Rows
	IDs     kernels.Buffer // i32 [Tokens]
	Pos     kernels.Buffer // i32 [Tokens] absolute position, -1 padding
	Cursors kernels.Cursors
	SSM     []kernels.State // by SSM layer, in model order
	KV      []kernels.KV    // by attention layer, in model order
	MTPKV   []kernels.KV    // by attention layer of the MTP head
}

// Model computes. Its methods enqueue operations and allocate nothing; workspaces are sized when it is loaded.
type Model interface {
	// Forward returns the final-normed hidden rows [b.Tokens, Hidden]; they stay valid until the next Forward.
	Forward(o kernels.Ops, b *Batch) kernels.Mat
	// Logits multiplies hidden rows by the head: out is F32 [hidden.Rows, Vocab].
	Logits(o kernels.Ops, hidden, out kernels.Mat)
	// Top is a head that answers for the first tokens of the vocabulary alone: out is F32 [hidden.Rows, tokens].
	Top(tokens int) Head
	// MTP is the multi-token-prediction head, or nil.
	MTP() MTP
	// WeightBytes is the device memory of all weights.
	WeightBytes() int64
}

// Head multiplies hidden rows by output rows of the vocabulary.
type Head interface {
	Logits(o kernels.Ops, hidden, out kernels.Mat)
}

// MTP is the drafting head.
type MTP interface {
	// Forward pairs the hidden row of position i (after the final norm) with the embedding of token i+1 and returns
	// the head's hidden rows, to be multiplied by Model.Logits or Model.Top. next is i32 [b.Tokens]. All pairs go into
	// the cache; with only, i32 [n], the answer is those n rows alone, and what nobody reads of others is left out. A
	// negative entry is a row that means nothing.
	Forward(o kernels.Ops, b *Batch, hidden kernels.Mat, next, only kernels.Buffer) kernels.Mat
}

// Config is a parsed config.json of one family.
type Config interface {
	Spec() Spec
	// Load reads the weights and packs them on the device for batches of up to maxTokens tokens.
	Load(dev kernels.Device, src Tensors, maxTokens int) (Model, error)
	// ActivationBytes is the device memory of activations that Load takes for batches of up to maxTokens tokens.
	ActivationBytes(act kernels.DType, maxTokens int) int64
	// Want lists every tensor that Load reads, with the shape and dtypes that dummy weights shall have.
	Want() []TensorSpec
}

// Tensors is where weights come from: a checkpoint, or made up.
type Tensors interface {
	// Get returns the named tensor, checked against shape; the memory stays valid as long as the source.
	Get(name string, shape ...int) (kernels.HostTensor, error)
	// Has reports whether there is such a tensor.
	Has(name string) bool
}

// TensorSpec is an expected tensor.
type TensorSpec struct {
	Name  string
	Shape []int
	DType kernels.DType
	Init  Init
}

// Init says which values a made-up tensor gets, so that dummy models compute sane numbers.
type Init uint8

// Kinds of made-up values.
const (
	InitMatrix Init = iota // normal, standard deviation 1/sqrt(cols)
	InitOne                // near 1: plain norm weights, D
	InitZero               // near 0: weights of 1+w norms, biases
	InitALog               // log of uniform(1, 16)
	InitDtBias             // inverse softplus of log-uniform(1e-3, 1e-1)
	InitConv               // uniform, +-1/sqrt(taps)
)
