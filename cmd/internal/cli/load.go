package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"reprise/chat"
	"reprise/demo"
	"reprise/engine"
	"reprise/internal/plainjson"
	"reprise/kernels"
	"reprise/kernels/cpu"
	"reprise/kernels/cuda"
	"reprise/sampler"
	"reprise/server/api"
	"reprise/tokenizer"
	"reprise/weights"
)

// Loaded is a running model, or what is needed to run one.
type Loaded struct {
	Engine    *engine.Opened // nil after Prepare
	Device    kernels.Device
	Tokenizer *tokenizer.Tokenizer // nil with --skip-tokenizer-init
	Template  *chat.Template       // nil without one
	Source    engine.Source
	Options   engine.Options
	Warnings  []string // lines for the person who started the program

	model    *Model
	defaults sampler.Params
	kwargs   []byte
}

// Load reads the model and starts an engine. Errors are one line.
func (m *Model) Load(progress func(done, total int64)) (*Loaded, error) {
	l, err := m.Prepare(progress)
	if err != nil {
		return nil, err
	}
	l.Engine, err = engine.Open(l.Device, l.Source, l.Options)
	if err != nil {
		l.Device.Close()
		return nil, err
	}
	l.Warnings = append(l.Warnings, l.Engine.Plan().Warnings...)
	return l, nil
}

// Prepare reads everything but the weights and opens the device. Errors are one line.
func (m *Model) Prepare(progress func(done, total int64)) (*Loaded, error) {
	o, err := m.options()
	if err != nil {
		return nil, err
	}
	if m.Change != nil {
		if err := m.Change(&o); err != nil {
			return nil, err
		}
	}
	folder, err := m.folder()
	if err != nil {
		return nil, err
	}
	l := &Loaded{model: m, Warnings: m.Warnings(), Options: o}
	l.Source = engine.Source{Folder: folder, Dummy: m.Dummy(), Progress: progress}
	if err := l.text(folder); err != nil {
		return nil, err
	}
	if l.Options.EOS, err = l.generation(folder); err != nil {
		return nil, err
	}
	var why string
	if l.Device, why, err = m.OpenDevice(); err != nil {
		return nil, err
	}
	if why != "" {
		l.Warnings = append(l.Warnings, why)
	}
	l.Warnings = append(l.Warnings, m.dtypeWarning(l.Device)...)
	return l, nil
}

// Close lets the engine finish and frees everything.
func (l *Loaded) Close() error {
	if l.Engine == nil {
		return l.Device.Close()
	}
	return errors.Join(l.Engine.Close(), l.Device.Close())
}

// API answers requests with this model.
func (l *Loaded) API(observe func(api.Outcome)) *api.API {
	return api.New(api.Config{
		Engine: api.FromEngine(l.Engine.Engine), Tokenizer: l.Tokenizer, Template: l.Template, TemplateKwargs: l.kwargs,
		Models: l.model.Names(), Defaults: l.defaults, Seed: uint64(l.model.seed), Observe: observe, Created: time.Now(),
	})
}

// OpenDevice opens what --device says. auto takes a GPU if this build and this machine have one, and says in one line why
// a build with CUDA does without.
func (m *Model) OpenDevice() (dev kernels.Device, why string, err error) {
	if m.device == "cpu" || m.device == "auto" && !cuda.Built {
		dev, err = cpu.Open(cpu.Options{})
		return dev, "", err
	}
	o := cuda.Options{Activations: kernels.BF16}
	if m.dtype == "float32" || m.dtype == "float" {
		o.Activations = kernels.F32
	}
	dev, err = cuda.Open(o)
	switch {
	case err == nil:
		return dev, "", nil
	case m.device == "cuda":
		return nil, "", fmt.Errorf("--device cuda: %w", err)
	}
	why = fmt.Sprintf("running on the CPU: %v", err)
	dev, err = cpu.Open(cpu.Options{})
	return dev, why, err
}

// dtypeWarning says what became of a --dtype that the device does not compute in.
func (m *Model) dtypeWarning(dev kernels.Device) []string {
	asked := map[string]kernels.DType{
		"bfloat16": kernels.BF16, "float16": kernels.F16, "half": kernels.F16, "float32": kernels.F32, "float": kernels.F32,
	}[m.dtype]
	if act := dev.Activations(); asked != kernels.Invalid && asked != act {
		return []string{fmt.Sprintf("--dtype %s: activations are %s on %s", m.dtype, act, dev.Name())}
	}
	return nil
}

func (m *Model) folder() (*weights.Folder, error) {
	if slices.Contains(demo.Names(), m.Model) {
		return demo.Open(m.Model)
	}
	info, err := os.Stat(m.Model)
	switch {
	case errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(m.Model, "demo-"):
		return demo.Open(m.Model)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("--model %s: no such folder (models are not downloaded; built in: %s)", m.Model, strings.Join(demo.Names(), ", "))
	case err != nil:
		return nil, err
	case !info.IsDir():
		return nil, fmt.Errorf("--model %s: is not a folder", m.Model)
	}
	return weights.OpenFolder(m.Model)
}

// text loads tokenizer and chat template.
func (l *Loaded) text(folder *weights.Folder) error {
	m := l.model
	if m.skipTokenizer {
		return nil
	}
	source := string(folder.ChatTemplate)
	var err error
	switch {
	case m.tokenizer != "" && m.tokenizer != m.Model:
		if l.Tokenizer, err = tokenizer.LoadFS(os.DirFS(m.tokenizer)); err != nil {
			return fmt.Errorf("--tokenizer %s: %w", m.tokenizer, err)
		}
	case folder.Tokenizer == nil:
		return fmt.Errorf("%s has no tokenizer.json (--skip-tokenizer-init serves token ids)", folder.Name)
	default:
		l.Tokenizer, err = tokenizer.Load(folder.Tokenizer, folder.TokenizerConfig)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", folder.Name, err)
	}
	if source == "" {
		source = l.Tokenizer.ChatTemplate()
	}
	return l.template(source)
}

// template compiles the chat template. A model's own one that does not compile only costs the chats.
func (l *Loaded) template(source string) error {
	given := l.model.chatTemplate
	if given != "" {
		text, err := os.ReadFile(given)
		switch {
		case err == nil:
			source = string(text)
		case strings.Contains(given, "{{") || strings.Contains(given, "{%"): // the template itself
			source = given
		default:
			return fmt.Errorf("--chat-template: %w", err)
		}
	}
	if source == "" {
		return nil
	}
	t, err := chat.NewTemplate(source)
	switch {
	case err != nil && given != "":
		return fmt.Errorf("--chat-template: %w", err)
	case err != nil:
		l.Warnings = append(l.Warnings, fmt.Sprintf("chats are refused: %v", err))
	}
	l.Template = t
	return l.templateKwargs()
}

func (l *Loaded) templateKwargs() error {
	const flag = "--default-chat-template-kwargs"
	if l.model.templateKwargs == "" {
		return nil
	}
	l.kwargs = []byte(l.model.templateKwargs)
	if _, err := chat.ParseKwargs(l.kwargs); err != nil {
		return Usagef("%s: %s", flag, strings.TrimPrefix(err.Error(), "chat_template_kwargs: "))
	}
	return nil
}

// generationConfig is what counts of generation_config.json.
type generationConfig struct {
	EOS         json.RawMessage `json:"eos_token_id"`
	Temperature *float32        `json:"temperature"`
	TopP        *float32        `json:"top_p"`
	TopK        *int            `json:"top_k"`
	MinP        *float32        `json:"min_p"`
	Repetition  *float32        `json:"repetition_penalty"`
}

// generation reads sampling defaults and the end-of-sequence ids that config.json does not name.
func (l *Loaded) generation(folder *weights.Folder) ([]int32, error) {
	l.defaults = sampler.Default()
	config, err := engine.ParseConfig(folder)
	if err != nil {
		return nil, err
	}
	vocab := config.Spec().Vocab
	var file, extra generationConfig
	if folder.GenerationConfig != nil {
		if err := plainjson.Decode(folder.GenerationConfig, &file, false); err != nil {
			return nil, fmt.Errorf("%s/generation_config.json: %w", folder.Name, err)
		}
	}
	if text := l.model.generationExtra; text != "" {
		if err := plainjson.Decode([]byte(text), &extra, true); err != nil {
			return nil, Usagef("--override-generation-config: %v", err)
		}
	}
	switch l.model.generationConfig {
	case "vllm":
	case "auto":
		file.apply(&l.defaults)
	default:
		return nil, Usagef("--generation-config %q: must be auto or vllm", l.model.generationConfig)
	}
	if err := l.defaults.Validate(vocab); err != nil {
		return nil, fmt.Errorf("%s/generation_config.json: %w", folder.Name, err)
	}
	extra.apply(&l.defaults)
	if err := l.defaults.Validate(vocab); err != nil {
		return nil, Usagef("--override-generation-config: %v", err)
	}
	ids, err := file.eos(folder.Name)
	if t := l.Tokenizer; t != nil {
		if id, ok := t.EOS(); ok {
			ids = append(ids, id)
		}
	}
	return slices.DeleteFunc(ids, func(id int32) bool { return id < 0 || int(id) >= vocab }), err
}

func (g *generationConfig) apply(p *sampler.Params) {
	set := func(to *float32, from *float32) {
		if from != nil {
			*to = *from
		}
	}
	set(&p.Temperature, g.Temperature)
	set(&p.TopP, g.TopP)
	set(&p.MinP, g.MinP)
	set(&p.Repetition, g.Repetition)
	if g.TopK != nil {
		p.TopK = max(*g.TopK, 0)
	}
}

// eos reads one id or a list of them.
func (g *generationConfig) eos(name string) ([]int32, error) {
	if len(g.EOS) == 0 || string(g.EOS) == "null" {
		return nil, nil
	}
	var one int32
	if json.Unmarshal(g.EOS, &one) == nil {
		return []int32{one}, nil
	}
	var list []int32
	if json.Unmarshal(g.EOS, &list) != nil {
		return nil, fmt.Errorf("%s/generation_config.json: eos_token_id must be a token id or a list of them, not %.40s", name, g.EOS)
	}
	return list, nil
}
