package demo

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"reprise/weights"
)

// sums are the SHA-256 of the files as they were trained and saved.
var sums = map[string]map[string]string{
	"demo-qwen35": {
		"chat_template.jinja":    "ad22cb6365e58696ffc10f1fbfc5f09b8762d0486df899e8f18b0491906e0b21",
		"config.json":            "aa984205122b313fc29bc614f08a59c300fb5543b7ffe28ec452eec2bd00b7ff",
		"generation_config.json": "a68e54193294f37adc69567b4086a3d69e68d81ec45646c9ad730c37cc53c71f",
		"model.safetensors":      "8dde04440906166c27f61c0d36c2c658c1db5afe527a198e4d827dd5e90db584",
		"tokenizer.json":         "80ca50fb763ce4d23f16c8841ed15b2afd31dac0e62018ed163d7f3f18d95f31",
		"tokenizer_config.json":  "b030ffa738019d5ca89061546c62e728c70da1987c320d55a338e224e8fe2c18",
	},
	"demo-nemotron": {
		"chat_template.jinja":    "818865333e4960c7fb09d2d29b2a980b4127a1d6c732bb430f1e231a6efb2946",
		"config.json":            "f30e2da9b44bab465ae7b997c93fe04a8a93c42aec47cb77a457533314afabce",
		"generation_config.json": "4639974180950540a1cbf01943e519aae52d83baa5ca032496557454c6ef208f",
		"model.safetensors":      "47df3657995244817ddd01036621c14941807172f99135eb64b60f58604e061a",
		"tokenizer.json":         "c2298fcbab6cbf6d8dc612dd41f04090e4d6f2223c5b6149f300eadd2ff3e64b",
		"tokenizer_config.json":  "1227b906a7e18867187652cb98a6806d5785b25138eca26433478edd5053290c",
	},
}

func skipLeftOut(t testing.TB) {
	if leftOut {
		t.Skip("built with the tag nodemo")
	}
}

func TestFilesAreTheTrainedOnes(t *testing.T) {
	skipLeftOut(t)
	for _, name := range Names() {
		files, err := fs.Sub(embedded, strings.TrimPrefix(name, prefix))
		if err != nil {
			t.Fatal(err)
		}
		for path, want := range sums[name] {
			text, err := fs.ReadFile(unpacked{files}, path)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			} else if got := fmt.Sprintf("%x", sha256.Sum256(text)); got != want {
				t.Errorf("%s/%s: sha256 %s, want %s", name, path, got, want)
			}
		}
	}
}

func TestOpenGivesAWholeFolder(t *testing.T) {
	skipLeftOut(t)
	tensors := map[string]string{
		"demo-qwen35":   "model.language_model.embed_tokens.weight",
		"demo-nemotron": "backbone.embeddings.weight",
	}
	for _, name := range Names() {
		folder, err := Open(name)
		if err != nil {
			t.Fatal(err)
		}
		for file, text := range map[string][]byte{
			"config.json": folder.Config, "generation_config.json": folder.GenerationConfig, "tokenizer.json": folder.Tokenizer,
			"tokenizer_config.json": folder.TokenizerConfig, "chat_template.jinja": folder.ChatTemplate,
		} {
			if got := fmt.Sprintf("%x", sha256.Sum256(text)); got != sums[name][file] {
				t.Errorf("%s: %s differs from the trained one", name, file)
			}
		}
		checkTensor(t, folder, tensors[name])
	}
}

func checkTensor(t *testing.T, folder *weights.Folder, tensor string) {
	t.Helper()
	c, err := folder.Tensors()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(tensor, 4096, 256); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestUnknownName(t *testing.T) {
	_, err := Open("demo-gpt")
	if err == nil || !strings.Contains(err.Error(), "demo-qwen35") {
		t.Errorf("error %v does not say which demos there are", err)
	}
}

func TestLeftOut(t *testing.T) {
	_, err := Open("demo-qwen35")
	if leftOut != errors.Is(err, ErrLeftOut) {
		t.Errorf("left out: %v, but Open answers %v", leftOut, err)
	}
}

func TestDecodeRejectsDamage(t *testing.T) {
	skipLeftOut(t)
	packed, size, err := readPacked(embedded, "qwen35/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := decode(make([]byte, size), packed[:len(packed)/2]); err == nil {
		t.Error("half a file was decompressed without complaint")
	}
	if err := decode(make([]byte, size-1), packed); err == nil {
		t.Error("a file of another size was decompressed without complaint")
	}
}

func BenchmarkOpenTensors(b *testing.B) {
	skipLeftOut(b)
	for _, name := range Names() {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				folder, err := Open(name)
				if err != nil {
					b.Fatal(err)
				}
				c, err := folder.Tensors()
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(c.Bytes())
				if err := c.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
