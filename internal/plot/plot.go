// Package plot draws line and scatter charts as PNG pictures: axes with ticks and labels, linear or logarithmic, a
// legend, and several panels above each other. The font is its own; the same input gives the same bytes.
package plot

import (
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"math"
)

// Panel is one chart.
type Panel struct {
	Title, XLabel, YLabel string
	LogX, LogY            bool // logarithmic axes; values that are not positive are then left out
	Series                []Series
}

// Series is one line, or with Points a cloud of dots. X and Y are of one length; values that are not finite are left out
// and interrupt a line.
type Series struct {
	Name   string // in the legend; "" = none
	X, Y   []float64
	Points bool
}

// Bounds of a picture.
const (
	maxSide   = 8192
	minWidth  = 240
	minHeight = 160
)

// Colours of the picture, by index.
const (
	white uint8 = iota
	black
	grey
	firstSeries
)

// palette has the three colours above, then those of series, which repeat.
var palette = color.Palette{
	color.RGBA{255, 255, 255, 255}, color.RGBA{30, 30, 30, 255}, color.RGBA{222, 222, 222, 255},
	color.RGBA{31, 119, 180, 255}, color.RGBA{214, 92, 14, 255}, color.RGBA{38, 140, 60, 255}, color.RGBA{190, 40, 50, 255},
	color.RGBA{125, 85, 170, 255}, color.RGBA{125, 80, 65, 255}, color.RGBA{210, 90, 170, 255}, color.RGBA{100, 110, 20, 255},
}

// Write draws the panels, each width x height pixels, one below the other. An error names a panel that cannot be drawn.
func Write(w io.Writer, width, height int, panels ...Panel) error {
	if len(panels) == 0 {
		return errors.New("plot: no panels")
	}
	if width < minWidth || height < minHeight || width > maxSide || height > maxSide/len(panels) {
		return fmt.Errorf("plot: %d panels of %d x %d pixels: at least %d x %d, at most %d in all", len(panels), width, height, minWidth, minHeight, maxSide)
	}
	img := image.NewPaletted(image.Rect(0, 0, width, height*len(panels)), palette)
	for i, p := range panels {
		for _, s := range p.Series {
			if len(s.X) != len(s.Y) {
				return fmt.Errorf("plot: panel %q: series %q has %d x and %d y", p.Title, s.Name, len(s.X), len(s.Y))
			}
		}
		newCanvas(img, image.Rect(0, i*height, width, (i+1)*height), p).draw()
	}
	return png.Encode(w, img)
}

// canvas is where a panel is drawn; frame is the part inside the axes.
type canvas struct {
	Panel
	img   *image.Paletted
	area  image.Rectangle
	frame image.Rectangle
	x, y  axis
	names []image.Point       // of the legend, by series; those without a place are missing
	lines map[image.Point]int // how many go over a pixel
}

// Pixels around the frame: room for labels.
const (
	left   = 76
	right  = 24
	top    = 44 // title and legend
	bottom = 44
)

func newCanvas(img *image.Paletted, area image.Rectangle, p Panel) *canvas {
	c := &canvas{Panel: p, img: img, area: area, lines: map[image.Point]int{}}
	c.frame = image.Rect(area.Min.X+left, area.Min.Y+top, area.Max.X-right, area.Max.Y-bottom)
	c.frame.Min.Y += legendLine * c.placeNames()
	xs, ys := newSpan(), newSpan()
	for _, s := range p.Series {
		for i := range s.X {
			if c.visible(s.X[i], s.Y[i]) {
				xs.add(s.X[i])
				ys.add(s.Y[i])
			}
		}
	}
	c.x, c.y = newAxis(xs, p.LogX, c.frame.Dx()/90), newAxis(ys, p.LogY, c.frame.Dy()/40)
	return c
}

func (c *canvas) visible(x, y float64) bool {
	return !math.IsInf(x, 0) && !math.IsNaN(x) && !math.IsInf(y, 0) && !math.IsNaN(y) && !(c.LogX && x <= 0) && !(c.LogY && y <= 0)
}

func (c *canvas) draw() {
	c.axes()
	for i, s := range c.Series {
		colour := seriesColour(i)
		if s.Points {
			c.dots(s, colour)
		} else {
			c.line(s, colour, dashed(i))
		}
	}
	c.legend()
}

// dashed tells series apart whose colours repeat.
func dashed(i int) bool { return i/(len(palette)-int(firstSeries))%2 == 1 }

func seriesColour(i int) uint8 { return firstSeries + uint8(i%(len(palette)-int(firstSeries))) }

// axes draws frame, grid, ticks, their labels and the texts.
func (c *canvas) axes() {
	f := c.frame
	for _, t := range c.x.ticks {
		x := c.column(t)
		fill(c.img, x, f.Min.Y, 1, f.Dy(), grey)
		label := tickLabel(t)
		drawText(c.img, x-textWidth(label, 1)/2, f.Max.Y+6, 1, black, false, label)
	}
	for _, t := range c.y.ticks {
		y := c.row(t)
		fill(c.img, f.Min.X, y, f.Dx(), 1, grey)
		label := tickLabel(t)
		drawText(c.img, f.Min.X-6-textWidth(label, 1), y-cellHeight/2, 1, black, false, label)
	}
	fill(c.img, f.Min.X, f.Min.Y, 1, f.Dy(), black)
	fill(c.img, f.Min.X, f.Max.Y, f.Dx(), 1, black)
	drawText(c.img, f.Min.X, c.area.Min.Y+8, 2, black, false, c.Title)
	drawText(c.img, f.Min.X+(f.Dx()-textWidth(c.XLabel, 1))/2, f.Max.Y+24, 1, black, false, c.XLabel)
	drawText(c.img, c.area.Min.X+8, f.Min.Y+(f.Dy()+textWidth(c.YLabel, 1))/2, 1, black, true, c.YLabel)
}

// column and row are the pixels of a value.
func (c *canvas) column(x float64) int {
	return c.frame.Min.X + int(math.Round(c.x.share(x)*float64(c.frame.Dx()-1)))
}

func (c *canvas) row(y float64) int {
	return c.frame.Max.Y - 1 - int(math.Round(c.y.share(y)*float64(c.frame.Dy()-1)))
}

// taken says whether another series has a pixel.
func (c *canvas) taken(x, y int, colour uint8) bool {
	there := c.img.ColorIndexAt(x, y)
	return there >= firstSeries && there != colour
}

func (c *canvas) dots(s Series, colour uint8) {
	for i := range s.X {
		if c.visible(s.X[i], s.Y[i]) {
			x, y, height := c.column(s.X[i]), c.row(s.Y[i]), 3
			if c.taken(x, y, colour) {
				height = 1 // what lies there stays visible
			}
			fill(c.img, x-1, y-1, 3, height, colour)
		}
	}
}

// maxMarked is the most values of a line that are marked by a dot each.
const maxMarked = 24

func (c *canvas) line(s Series, colour uint8, dashed bool) {
	own := map[image.Point]bool{}
	open := false // the value before is at (px, py)
	var px, py int
	for i := range s.X {
		if !c.visible(s.X[i], s.Y[i]) {
			open = false
			continue
		}
		x, y := c.column(s.X[i]), c.row(s.Y[i])
		if open {
			c.stroke(px, py, x, y, colour, dashed, own)
		}
		if len(s.X) <= maxMarked {
			fill(c.img, x-2, y-2, 5, 5, colour)
		}
		px, py, open = x, y, true
	}
	for at := range own {
		c.lines[at]++
	}
}

// Pixels of a dash and of the gap behind it.
const dash = 5

// overlap is the pixels of a piece of a line that lies on others.
const overlap = 10

// stroke draws a straight line two pixels thick and notes its pixels. Dashes lie where they would on one line across the
// frame. On k other lines it takes every (k+1)th piece, at the left end the kth (from 0): all of them stay visible.
func (c *canvas) stroke(x0, y0, x1, y1 int, colour uint8, dashed bool, own map[image.Point]bool) {
	steps := max(abs(x1-x0), abs(y1-y0), 1)
	for i := range steps + 1 {
		x := x0 + int(math.Round(float64(i*(x1-x0))/float64(steps)))
		y := y0 + int(math.Round(float64(i*(y1-y0))/float64(steps)))
		if dashed && x/dash%2 == 1 {
			continue
		}
		for i := range 4 {
			at := image.Pt(x+i%2, y+i/2)
			own[at] = true
			if k := c.lines[at]; dashed || (at.X-c.frame.Min.X)/overlap%(k+1) == k {
				fill(c.img, at.X, at.Y, 1, 1, colour)
			}
		}
	}
}

func abs(x int) int { return max(x, -x) }

// legendLine is the height of a line of the legend.
const legendLine = cellHeight + 4

// placeNames finds a place for every name above the frame, and returns how many lines they take besides the first. Lines
// take a third of the panel at most; names beyond have no place.
func (c *canvas) placeNames() (more int) {
	x, y := c.frame.Min.X, c.area.Min.Y+28
	for _, s := range c.Series {
		width := 14 + textWidth(s.Name, 1)
		if x > c.frame.Min.X && x+width > c.frame.Max.X {
			more++
			x, y = c.frame.Min.X, y+legendLine
		}
		if y > c.area.Min.Y+c.area.Dy()/3 {
			return more - 1
		}
		c.names = append(c.names, image.Pt(x, y))
		if s.Name != "" {
			x += width + 16
		}
	}
	return more
}

// legend names the series above the frame.
func (c *canvas) legend() {
	for i, at := range c.names {
		name := c.Series[i].Name
		if name == "" {
			continue
		}
		fill(c.img, at.X, at.Y+1, 8, 5, seriesColour(i))
		if dashed(i) {
			fill(c.img, at.X+3, at.Y+1, 2, 5, white)
		}
		drawText(c.img, at.X+14, at.Y, 1, black, false, name)
	}
}
