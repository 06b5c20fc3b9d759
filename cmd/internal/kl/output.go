package kl

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strconv"

	"reprise/internal/plot"
)

func jsonFloat(v float64) []byte { return strconv.AppendFloat(nil, v, 'g', -1, 64) }

// WriteCSV writes a line for every setting and position: mean, median and maximum over the texts, in nats.
func WriteCSV(w io.Writer, all []*Series) error {
	b := bufio.NewWriter(w)
	fmt.Fprintln(b, "setting,position,mean,median,max")
	for _, s := range all {
		for position := 1; position <= s.length(); position++ {
			if mean, mid, most := s.At(position); !math.IsNaN(mean) {
				fmt.Fprintf(b, "%s,%d,%.6g,%.6g,%.6g\n", s.Name, position, mean, mid, most)
			}
		}
	}
	return b.Flush()
}

func (s *Series) length() int { return len(s.nats[0]) }

// points is about how many points a curve of the picture has: each is the mean of the positions of a bin.
const points = 64

// Curve is the mean over texts and the positions of bins. A setting that differs nowhere has no points above 0.
func (s *Series) Curve() (x, y []float64) {
	width := max(1, (s.length()+points-1)/points)
	for from := 1; from <= s.length(); from += width {
		sum, n := 0.0, 0
		for position := from; position < from+width && position <= s.length(); position++ {
			if mean, _, _ := s.At(position); !math.IsNaN(mean) {
				sum, n = sum+mean, n+1
			}
		}
		if n > 0 {
			x, y = append(x, float64(from)+float64(width-1)/2), append(y, sum/float64(n))
		}
	}
	return x, y
}

// Size of the picture.
const (
	width  = 1100
	height = 640
)

// WritePlot draws divergence over position, one curve a setting, as a PNG picture with a logarithmic scale. Curves of 0
// have no place on it: their names are in the legend alone.
func WritePlot(w io.Writer, title string, all []*Series) error {
	p := plot.Panel{Title: title, XLabel: "tokens read", YLabel: "KL from the reference, nats (mean over texts and bins)", LogY: true}
	for _, s := range all {
		x, y := s.Curve()
		p.Series = append(p.Series, plot.Series{Name: s.Name, X: x, Y: y})
	}
	return plot.Write(w, width, height, p)
}
