"""An SVG picture of seconds against number of tables, both logarithmic."""

import math

WIDTH, HEIGHT = 800, 480
LEFT, RIGHT, TOP, BOTTOM = 76, 112, 66, 60

INK, FAINT, GRID = '#24292f', '#6e7781', '#e4e8ec'
STYLES = {
	'built-in': ('#b3541e', None),
	'reuse_sync': ('#1f6fb2', None),
	'plain copy': ('#8b949e', '5 4'),
}


def readable(value):
	"""Seconds or a number of tables, as people write it."""
	if value >= 100 or value == int(value):
		return f'{value:,.0f}'
	return f'{value:.1f}' if value >= 10 else f'{value:.2g}'


class Axis:
	"""Whole powers of ten around the values, onto pixels."""

	def __init__(self, values, start, end):
		self.low = math.floor(math.log10(min(values)) + 1e-9)
		self.high = max(math.ceil(math.log10(max(values)) - 1e-9), self.low + 1)
		self.start, self.end = start, end

	def at(self, value):
		share = (math.log10(value) - self.low) / (self.high - self.low)
		return self.start + share * (self.end - self.start)

	def powers(self):
		return [10.0 ** e for e in range(self.low, self.high + 1)]

	def between(self):
		return [n * p for p in self.powers()[:-1] for n in range(2, 10)]


class Picture:
	def __init__(self):
		self.parts = [
			f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
			f' width="{WIDTH}" height="{HEIGHT}" role="img"'
			' font-family="system-ui, -apple-system, \'Segoe UI\', Helvetica, Arial,'
			' sans-serif" font-size="13">',
			'<title>Initial synchronization of empty tables: seconds until all are'
			' ready, against the number of tables</title>',
			f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>']

	def line(self, x1, y1, x2, y2, color, width=1.0, dashes=None):
		extra = f' stroke-dasharray="{dashes}"' if dashes else ''
		self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}"'
			f' y2="{y2:.1f}" stroke="{color}" stroke-width="{width}"{extra}/>')

	def text(self, x, y, text, color=INK, anchor='start', size=13, weight=400,
			turn=None):
		extra = f' transform="rotate({turn} {x:.1f} {y:.1f})"' if turn else ''
		self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}"'
			f' text-anchor="{anchor}" font-size="{size}" font-weight="{weight}"'
			f'{extra}>{text}</text>')

	def dot(self, x, y, color):
		self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5"'
			f' fill="{color}" stroke="#ffffff" stroke-width="1.5"/>')

	def finished(self):
		return '\n'.join([*self.parts, '</svg>', ''])


def draw_axes(picture, x, y):
	bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
	for value in y.powers():
		picture.line(LEFT, y.at(value), right, y.at(value), GRID)
		picture.text(LEFT - 10, y.at(value) + 4.5, readable(value), FAINT, 'end')
	for value in y.between():
		picture.line(LEFT - 4, y.at(value), LEFT, y.at(value), GRID)
	for value in x.powers():
		picture.line(x.at(value), TOP, x.at(value), bottom, GRID)
		picture.text(x.at(value), bottom + 20, readable(value), FAINT, 'middle')
	for value in x.between():
		picture.line(x.at(value), bottom, x.at(value), bottom + 4, GRID)
	picture.line(LEFT, bottom, right, bottom, FAINT)
	picture.text((LEFT + right) / 2, HEIGHT - 16, 'tables', INK, 'middle')
	picture.text(20, (TOP + bottom) / 2, 'seconds until all are ready', INK,
		'middle', turn=-90)
	picture.text(LEFT, 28, 'Initial synchronization of empty tables', INK,
		size=17, weight=600)
	picture.text(LEFT, 48, 'medians, and the range of all runs; both scales are'
		' logarithmic', FAINT)


def label_offsets(series, y):
	"""Where each line's figures go: above, but below on the lowest line."""
	order = sorted(series, key=lambda name: -sum(
		y.at(p[1]) for p in series[name]) / len(series[name]))
	return {name: 20 if i == 0 else -11 for i, name in enumerate(order)}


def draw(series):
	"""series: name to points (tables, median, least, most), by tables."""
	series = {name: points for name, points in series.items() if points}
	picture = Picture()
	if not series:
		picture.text(WIDTH / 2, HEIGHT / 2,
			'No case of empty tables was measured.', FAINT, 'middle')
		return picture.finished()
	points = [p for line in series.values() for p in line]
	x = Axis([p[0] for p in points], LEFT, WIDTH - RIGHT)
	y = Axis([v for p in points for v in p[1:]], HEIGHT - BOTTOM, TOP)
	draw_axes(picture, x, y)
	offsets = label_offsets(series, y)
	for name, line in series.items():
		color, dashes = STYLES[name]
		for a, b in zip(line, line[1:]):
			picture.line(x.at(a[0]), y.at(a[1]), x.at(b[0]), y.at(b[1]), color,
				2.2, dashes)
		for tables, median, least, most in line:
			picture.line(x.at(tables), y.at(least), x.at(tables), y.at(most),
				color, 1.4)
			picture.dot(x.at(tables), y.at(median), color)
			picture.text(x.at(tables), y.at(median) + offsets[name],
				f'{readable(median)} s', color, 'middle', 12)
		last = line[-1]
		picture.text(x.at(last[0]) + 12, y.at(last[1]) + 4.5, name, color,
			weight=600)
	return picture.finished()
