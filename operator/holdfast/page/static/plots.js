// uPlot with our colours. A value that is not known is null: a gap, never a zero.
import { clock } from "./text.js";

// Of the scheme, light or dark, that the browser prefers now; the page is built anew where that changes.
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// Lines differ by dash and width as well as by colour.
export const DASHED = [7, 4], DOTTED = [2, 3], MIXED = [9, 3, 2, 3];
const FONT = "12px system-ui, sans-serif";
const FEW_POINTS = 8; // of which a line may be too short to be seen

const lonely = (plot, index) => plot.data[index].filter((value) => value != null).length < FEW_POINTS;

function line(given) {
  const { stroke, filled, stepped, ...series } = given;
  return {
    width: 1.5, points: { show: lonely, size: 4 }, ...series, stroke: colour(stroke),
    ...(filled ? { fill: `${colour(stroke)}${filled}` } : {}),
    ...(stepped ? { paths: uPlot.paths.stepped({ align: 1 }) } : {}),
  };
}

function axis(more) {
  const grid = { stroke: colour("grid"), width: 1 };
  return { font: FONT, stroke: colour("muted"), grid, ticks: grid, ...more };
}

// `lines`: {label, stroke (name of a colour), dash, width, stepped, filled (opacity in hex)}; `low`, `high`: bounds that
// are always within sight.
export class Plot {
  constructor(host, { lines, format, low = 0, high = 0, marks = () => [] }) {
    this.host = host;
    // Without a cursor the legend shows the newest values.
    const value = (plot, shown, index, at) => {
      const told = at == null ? plot.data[index].at(-1) : shown;
      return told == null ? "–" : format(told);
    };
    this.plot = new uPlot({
      width: this.width(), height: 190, padding: [8, 18, 0, 0],
      cursor: { sync: { key: "time" }, drag: { x: false, y: false }, points: { size: 6 } },
      legend: { markers: { width: 2, dash: (plot, index) => legendDash(plot.series[index].dash) } },
      scales: { x: { time: true }, y: { range: (_, min, max) => bounds(Math.min(low, min ?? low), Math.max(high, max ?? high)) } },
      axes: [
        axis({ values: (_, ticks) => ticks.map((at) => clock(at)) }),
        axis({ size: 72, values: (_, ticks) => ticks.map(format) }),
      ],
      series: [{ label: "at", value: (_, at, __, index) => (index == null ? "now" : clock(at)) }, ...lines.map((each) => line({ value, ...each }))],
      hooks: { draw: [(plot) => drawMarks(plot, marks())] },
    }, [[], ...lines.map(() => [])], host);
    this.watch = new ResizeObserver(() => this.plot.setSize({ width: this.width(), height: 190 }));
    this.watch.observe(host);
  }

  width() {
    return Math.max(200, Math.floor(this.host.clientWidth));
  }

  show(data, from, to) {
    this.plot.setData(data, false);
    this.plot.batch(() => {
      this.plot.setScale("x", { min: from, max: to });
    });
    if (this.plot.cursor.idx == null) this.plot.setLegend({ idx: null }, false);
  }

  end() {
    this.watch.disconnect();
    this.plot.destroy();
  }
}

// Attainment beside its objective, in the size of a word.
export class Spark {
  constructor(host, row, data) {
    this.low = lowest(row);
    this.plot = new uPlot({
      width: 150, height: 34, padding: [2, 0, 2, 0], pxAlign: false,
      cursor: { show: false }, select: { show: false }, legend: { show: false },
      scales: { x: { time: false }, y: { range: () => [this.low - 0.02 * (100 - this.low), 100 + 0.05 * (100 - this.low)] } },
      axes: [{ show: false }, { show: false }],
      series: [
        {},
        line({ stroke: "missed", dash: DASHED, width: 1.2, points: { show: false } }),
        line({ stroke: "ink" }),
      ],
    }, sparkData(row, data), host);
  }

  show(row, data) {
    this.low = lowest(row);
    this.plot.setData(sparkData(row, data));
  }

  end() {
    this.plot.destroy();
  }
}

const lowest = (row) => Math.min(100 - 250 * (1 - row.objective), ...row.spark.filter((value) => value != null));
const legendDash = (dash) => (dash == null ? "solid" : dash[0] < 4 ? "dotted" : "dashed");

function sparkData(row, data) {
  const times = row.spark.map((_, index) => data.spark_from + index * data.spark_step_seconds);
  return [times, times.map(() => 100 * row.objective), row.spark];
}

function bounds(low, high) {
  const room = 0.06 * (high - low || 1);
  return [low < 0 ? low - room : low, high + room];
}

function drawMarks(plot, times) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = colour("edge");
  ctx.setLineDash([2, 3]);
  for (const at of times) {
    if (at < plot.scales.x.min || at > plot.scales.x.max) continue;
    const x = Math.round(plot.valToPos(at, "x", true));
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}
