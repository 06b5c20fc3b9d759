package plot

import (
	"bytes"
	"errors"
	"image"
	"image/png"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
)

func draw(t *testing.T, panels ...Panel) *image.Paletted {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, 640, 320, panels...); err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(&b)
	if err != nil {
		t.Fatal(err)
	}
	return img.(*image.Paletted)
}

// count is the pixels of a colour inside a rectangle.
func count(img *image.Paletted, r image.Rectangle, colour uint8) (n int) {
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			if img.ColorIndexAt(x, y) == colour {
				n++
			}
		}
	}
	return n
}

var frame = image.Rect(left, top, 640-right, 320-bottom)

func TestALineRisesFromLowerLeftToUpperRight(t *testing.T) {
	img := draw(t, Panel{Title: "rising", XLabel: "x", YLabel: "y", Series: []Series{{Name: "a", X: []float64{0, 10}, Y: []float64{0, 10}}}})
	blue := firstSeries
	lower := image.Rect(frame.Min.X, frame.Max.Y-12, frame.Min.X+12, frame.Max.Y)
	upper := image.Rect(frame.Max.X-12, frame.Min.Y, frame.Max.X, frame.Min.Y+12)
	if count(img, lower, blue) == 0 || count(img, upper, blue) == 0 {
		t.Error("the line does not reach the corners")
	}
	other := image.Rect(frame.Min.X, frame.Min.Y, frame.Min.X+frame.Dx()/3, frame.Min.Y+frame.Dy()/3)
	if count(img, other, blue) != 0 {
		t.Error("the line is where it does not belong")
	}
	if count(img, image.Rect(0, 0, 640, top), black) == 0 || count(img, image.Rect(0, frame.Max.Y+2, 640, 320), black) == 0 {
		t.Error("no title or no labels")
	}
}

func TestHolesInterruptALine(t *testing.T) {
	img := draw(t, Panel{Series: []Series{{X: []float64{0, 1, 2, 3, 4}, Y: []float64{1, 1, math.NaN(), 1, 1}}}})
	gap := image.Rect(frame.Min.X+frame.Dx()*3/8, frame.Min.Y, frame.Min.X+frame.Dx()*5/8, frame.Max.Y)
	if count(img, gap, firstSeries) != 0 {
		t.Error("a line goes through a value that is not a number")
	}
	if count(img, frame, firstSeries) == 0 {
		t.Error("nothing is drawn")
	}
}

func TestPanelsAreBelowEachOther(t *testing.T) {
	one := Panel{Series: []Series{{X: []float64{1}, Y: []float64{2}, Points: true}}}
	img := draw(t, one, Panel{}, one)
	if img.Rect.Dy() != 3*320 {
		t.Fatalf("%v", img.Rect)
	}
	for i, want := range []bool{true, false, true} {
		if got := count(img, frame.Add(image.Pt(0, i*320)), firstSeries) > 0; got != want {
			t.Errorf("panel %d has dots: %v", i, got)
		}
	}
}

// Many names take several lines, which move the frame down, and a series whose colour is another's is dashed.
func TestManySeries(t *testing.T) {
	p := Panel{}
	for i := range 12 {
		s := Series{Name: "a rather long name of a series", X: []float64{0, 10}, Y: []float64{float64(i), float64(i)}}
		if i != 0 && i != 8 {
			s.Y[0] = math.NaN()
		}
		p.Series = append(p.Series, s)
	}
	img := draw(t, p)
	const lines = 6 // of two names each
	if lines*legendLine+28 > 320/3+legendLine {
		t.Fatal("the names do not fit: the test shows nothing")
	}
	legend := image.Rect(0, 0, 640, top+(lines-1)*legendLine)
	for colour := firstSeries; int(colour) < len(palette); colour++ {
		if got := count(img, legend, colour); got < 40 {
			t.Errorf("colour %d has %d pixels in the legend", colour, got)
		}
	}
	under := image.Rect(0, legend.Max.Y, 640, 320)
	if solid := count(img, under, firstSeries); solid < 3*(frame.Dx()-10) || solid > 4*(frame.Dx()-10)*9/10 {
		t.Errorf("a whole line and a dashed one take %d pixels of %d columns, two each", solid, frame.Dx())
	}
}

// Of lines and dots in the same place every colour is seen.
func TestWhatCoincidesStaysVisible(t *testing.T) {
	for _, points := range []bool{false, true} {
		p := Panel{}
		for range 4 {
			if !points || len(p.Series) < 2 {
				p.Series = append(p.Series, Series{X: []float64{0, 3, 10}, Y: []float64{1, 5, 7}, Points: points})
			}
		}
		img := draw(t, p)
		for i := range p.Series {
			least := 150 // of some 2 x 540 pixels
			if points {
				least = 6 // of three dots with 9 pixels each
			}
			if got := count(img, frame, seriesColour(i)); got < least {
				t.Errorf("points %v: series %d has %d pixels, want %d", points, i, got, least)
			}
		}
	}
}

// Hostile values must neither panic nor loop.
func TestHostileValues(t *testing.T) {
	hostile := []float64{0, -1, 1, math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, -math.MaxFloat64, math.SmallestNonzeroFloat64, 1e-300, 1e300}
	img := image.NewPaletted(image.Rect(0, 0, minWidth, minHeight), palette)
	for i := range hostile {
		for j := range hostile {
			x := []float64{hostile[i], hostile[j], 3}
			for mode := range 8 {
				p := Panel{Title: "\x00ü", LogX: mode&1 != 0, LogY: mode&2 != 0, Series: []Series{{Name: "s", X: x, Y: x, Points: mode&4 != 0}}}
				newCanvas(img, img.Rect, p).draw()
			}
		}
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		words         string
		width, height int
		panels        []Panel
	}{
		{"no panels", 640, 320, nil},
		{"at least", 10, 320, make([]Panel, 1)},
		{"at most", 640, 5000, make([]Panel, 2)},
		{`"p"`, 640, 320, []Panel{{Title: "p", Series: []Series{{X: make([]float64, 2), Y: make([]float64, 1)}}}}},
	} {
		if err := Write(io.Discard, c.width, c.height, c.panels...); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%v, want %q", err, c.words)
		}
	}
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		low, high float64
		log       bool
		n         int
		want      string
	}{
		{0, 10, false, 5, "0 2 4 6 8 10"},
		{3, 97, false, 5, "0 20 40 60 80 100"},
		{-3, 3, false, 3, "-4 -2 0 2 4"},
		{0, 42000, false, 5, "0 10k 20k 30k 40k 50k"},
		{5, 5, false, 5, "0 1 2 3 4 5"},
		{0, 0, false, 2, "0 0.5 1"},
		{1, 1000, true, 2, "1 10 100 1000"},
		{3, 70, true, 6, "2 5 10 20 50 100"},
		{0.02, 0.02, true, 6, "0.02 0.05"},
		{1e6, 3e6, false, 3, "0 1M 2M 3M"},
	} {
		a := newAxis(span{c.low, c.high}, c.log, c.n)
		var labels []string
		for _, v := range a.ticks {
			labels = append(labels, tickLabel(v))
		}
		if got := strings.Join(labels, " "); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
		if a.low > c.low || a.high < c.high || !slices.IsSorted(a.ticks) {
			t.Errorf("%+v: %+v", c, a)
		}
	}
}

// TestFont holds that every character differs from every other: a slip in the table would give twins.
func TestFont(t *testing.T) {
	if len(glyphs) != '~'-' '+1 {
		t.Fatalf("%d glyphs", len(glyphs))
	}
	seen := map[[5]byte]rune{}
	for i, g := range glyphs {
		r := rune(' ' + i)
		if other, twin := seen[g]; twin {
			t.Errorf("%q looks like %q", r, other)
		}
		seen[g] = r
	}
}

func TestSameInputSameBytes(t *testing.T) {
	var s Series
	for i := range 200 {
		s.X, s.Y = append(s.X, float64(i)), append(s.Y, 40+20*math.Sin(float64(i)/9))
	}
	p := Panel{Title: "waves", XLabel: "seconds", YLabel: "milliseconds", Series: []Series{s, {Name: "dots", X: s.X, Y: s.X, Points: true}}}
	var a, b bytes.Buffer
	if err := errors.Join(Write(&a, 800, 320, p), Write(&b, 800, 320, p)); err != nil {
		t.Fatal(err)
	}
	if a.Len() == 0 || !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Errorf("%d and %d bytes", a.Len(), b.Len())
	}
}
