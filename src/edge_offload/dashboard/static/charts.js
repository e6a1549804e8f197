/* Charts of a run, for the live page and for reports: uPlot with the suite's colours, units and time axis. */
"use strict";
const EdgeCharts = (() => {
  // Okabe and Ito's palette: told apart with every common colour vision. The robot's work is orange, the server's green.
  const STAGES = [
    ["queue", "queue", "#8a939c"], ["encode", "encode", "#f0e442"], ["uplink", "uplink", "#56b4e9"],
    ["compute_robot", "robot computes", "#e69f00"], ["compute_server", "server computes", "#009e73"],
    ["downlink", "downlink", "#0072b2"], ["decode", "decode", "#cc79a7"],
  ].map(([key, label, color]) => ({ key, label, color }));
  const MODES = {
    local: "#e69f00", server: "#009e73", per_op: "#d55e00", cached: "#f0e442",
    lazy: "#56b4e9", replay: "#0072b2", split: "#cc79a7",
  };
  const ORIGINS = { fresh: "#009e73", carried: "#56b4e9", local: "#e69f00", none: "#8a939c" };
  const FAULT = "#d55e00";
  const LEFT = 56, RIGHT = 20;
  const GAP_S = 2.5;
  const charts = new Set();

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const pad = (number) => String(number).padStart(2, "0");
  const clock = (t) => { const d = new Date(t * 1000); return `${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}`; };
  const elapsed = (t) => {
    const s = Math.round(t * 10) / 10, whole = Math.floor(Math.abs(s)), sign = s < 0 ? "-" : "";
    const tenths = Math.round((Math.abs(s) - whole) * 10);
    const hours = Math.floor(whole / 3600), rest = `${pad(Math.floor(whole / 60) % 60)}:${pad(whole % 60)}`;
    return sign + (hours ? `${hours}:${rest}` : rest) + (tenths ? `.${tenths}` : "");
  };
  const round = (value, digits = 3) => {
    if (value == null || !isFinite(value)) return "–";
    if (value === 0) return "0";
    const magnitude = Math.floor(Math.log10(Math.abs(value)));
    return value.toFixed(Math.max(0, Math.min(3, digits - 1 - magnitude)));
  };

  /* Puts a row of nulls where nothing came for a while: a line across a gap would claim what nobody measured.
     `lasted` (s, per row): how long a row's own work took; that much silence before it is no gap. */
  function withGaps(t, columns, lasted = null) {
    const times = [], out = columns.map(() => []);
    for (let i = 0; i < t.length; i++) {
      if (i && t[i] - t[i - 1] > GAP_S + (lasted ? lasted[i] : 0)) { times.push(t[i - 1] + 1e-3); out.forEach((column) => column.push(null)); }
      times.push(t[i]);
      columns.forEach((column, k) => out[k].push(column[i]));
    }
    return [times, ...out];
  }

  /* One uPlot in an element that fills its width. `series` and `data` as uPlot's own, less the times. */
  class Chart {
    constructor(element, { series, height = 150, format = clock, name = "", yMax = null, sync = "run", xLabel = null, onZoom = null, onReset = null }) {
      Object.assign(this, { element, series, height, format, yMax, sync, xLabel, onZoom, onReset });
      this.empty = document.createElement("p");
      this.empty.className = "empty";
      element.setAttribute("role", "img");
      element.setAttribute("aria-label", name);
      this.data = [[], ...series.map(() => [])];
      this.range = [0, 1];
      this.build();
      new ResizeObserver(() => this.resize()).observe(element);
      charts.add(this);
    }

    build() {
      if (this.plot) this.plot.destroy();
      const axis = { stroke: css("--soft"), font: "12px system-ui, sans-serif", grid: { stroke: css("--grid"), width: 1 }, ticks: { show: false } };
      const padTop = (min, max) => (max > 0 ? max * 1.08 : 1);
      const chart = this;
      this.plot = new uPlot({
        width: this.width(), height: this.height,
        padding: [8, RIGHT, 0, 0],
        cursor: { y: false, drag: { x: Boolean(this.onZoom), y: false, setScale: false }, points: { size: 6 }, ...(this.sync ? { sync: { key: this.sync } } : {}) },
        legend: { live: true },
        hooks: { setSelect: [(u) => this.selected(u)] },
        scales: {
          x: { time: false, range: () => this.range },
          y: { range: (u, min, max) => [0, this.yMax === null ? padTop(min, max) : Math.max(this.yMax, padTop(min, max) / 1.08)] },
        },
        axes: [
          {
            ...axis, size: 26, space: 70,
            ...(this.xLabel === null
              ? { incrs: [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200], values: (u, splits) => splits.map(this.format) }
              : { values: (u, splits) => splits.map((value) => `${+value.toFixed(3)} ${chart.xLabel}`) }),
          },
          { ...axis, size: LEFT, space: 28, values: (u, splits) => splits.map((value) => String(+value.toFixed(3))) },
        ],
        series: [{ value: (u, t) => (t == null ? "" : this.format(t)) }, ...this.series.map((one) => ({ spanGaps: false, width: 1.5, points: { show: false }, value: (u, v) => (v == null ? "" : round(v)), ...one, stroke: one.stroke === "total" ? css("--total") : one.stroke }))],
      }, this.data, this.element);
      this.element.append(this.empty);
      if (this.onReset) this.plot.over.addEventListener("dblclick", () => this.onReset());
    }

    selected(u) {
      if (!this.onZoom || u.select.width < 4) return;
      const [from, to] = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
      u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      this.onZoom(from, to);
    }

    /* The same data between other times. */
    show(begin, end) { this.set(this.data, begin, end, this.empty.textContent); }

    width() { return Math.max(160, Math.floor(this.element.clientWidth || 300)); }

    resize() {
      const width = this.width();
      if (width !== this.plot.width) this.plot.setSize({ width, height: this.height });
    }

    /* Show data (times first) between two times; `emptyText` says why there is none. */
    set(data, begin, end, emptyText = "") {
      this.data = data;
      this.range = [begin, end > begin ? end : begin + 1];
      this.empty.textContent = data[0].length ? "" : emptyText;
      this.plot.setData(data);
    }
  }

  /* Latency per frame, its stages on top of each other. Rows: t, total_s, stages (array of s), fell back, deadline_s. */
  function latencyChart(element, options = {}) {
    let raw = STAGES.map(() => []);
    const stacked = STAGES.map((stage, index) => ({
      label: stage.label, stroke: stage.color, fill: stage.color, width: 0,
      value: (u, v, series, row) => (row == null || raw[index][row] == null ? "" : round(raw[index][row])),
    })).reverse();
    const chart = new Chart(element, {
      height: 330, name: "latency by stage, milliseconds per frame", ...options,
      series: [
        ...stacked,
        { label: "total", stroke: "total", width: 1.5 },
        { label: "fell back", stroke: FAULT, width: 0, paths: () => null, points: { show: true, size: 4, fill: FAULT, stroke: FAULT } },
        { label: "deadline", stroke: "total", dash: [5, 5], width: 1 },
      ],
    });
    return {
      chart,
      set(rows, begin, end, emptyText) {
        const stageColumns = STAGES.map((_, k) => rows.stages[k].map((s) => s * 1e3));
        const total = rows.total.map((s) => s * 1e3);
        const back = rows.fallback.map((yes, i) => (yes ? total[i] : null));
        const deadline = rows.deadline.map((s) => (s > 0 ? s * 1e3 : null));
        const [t, ...columns] = withGaps(rows.t, [...stageColumns, total, back, deadline], rows.total);
        raw = columns.slice(0, STAGES.length);
        const sums = [];
        raw.forEach((column, k) => sums.push(column.map((value, i) => (value == null ? null : value + (k ? sums[k - 1][i] : 0)))));
        chart.set([t, ...sums.reverse(), ...columns.slice(STAGES.length)], begin, end, emptyText);
      },
    };
  }

  /* Rows of colour over the same times as the charts: the mode that was asked for, the mode that ran and, where results
     are carried along, where those came from. */
  class Ribbon {
    constructor(element) {
      this.canvas = document.createElement("canvas");
      this.canvas.setAttribute("role", "img");
      this.canvas.setAttribute("aria-label", "modes over time");
      this.keys = document.createElement("div");
      this.keys.className = "keys";
      element.append(this.canvas, this.keys);
      this.last = null;
      new ResizeObserver(() => this.draw()).observe(this.canvas);
      charts.add(this);
    }

    /* `asked` and `ran`: lists of [begin, end, mode]; `gave`: rows of origins, see below. */
    set(asked, ran, gave, begin, end) {
      this.last = { rows: [["asked", asked], ["ran", ran], ...gave], begin, end };
      this.draw();
    }

    build() { this.draw(); }

    draw() {
      if (!this.last) return;
      const { rows, begin, end } = this.last, ratio = window.devicePixelRatio || 1;
      const width = this.canvas.clientWidth, height = 24 * rows.length - 2;
      this.canvas.style.height = `${height}px`;
      this.canvas.width = width * ratio; this.canvas.height = height * ratio;
      const draw = this.canvas.getContext("2d");
      draw.scale(ratio, ratio);
      draw.font = "12px system-ui, sans-serif"; draw.textBaseline = "middle";
      const x = (t) => LEFT + ((Math.min(Math.max(t, begin), end) - begin) / (end - begin || 1)) * (width - LEFT - RIGHT);
      const seen = new Set();
      rows.forEach(([name, segments], row) => {
        const top = row * 24;
        draw.fillStyle = css("--soft"); draw.textAlign = "right";
        draw.fillText(name, LEFT - 8, top + 11);
        draw.fillStyle = css("--grid"); draw.fillRect(LEFT, top, width - LEFT - RIGHT, 22);
        draw.textAlign = "left";
        for (const [from, to, mode] of segments) {
          if (to < begin || from > end) continue;
          const left = x(from), wide = Math.max(1, x(to) - left);
          seen.add(mode);
          draw.fillStyle = MODES[mode] || ORIGINS[mode] || "#888"; draw.fillRect(left, top, wide, 22);
          if (wide > draw.measureText(mode).width + 10) {
            draw.fillStyle = mode === "replay" ? "#fff" : "#111"; draw.fillText(mode, left + 5, top + 11);
          }
        }
      });
      this.keys.replaceChildren(...[...seen].sort().map((mode) => {
        const key = document.createElement("span"), patch = document.createElement("i");
        patch.style.background = MODES[mode] || ORIGINS[mode] || "#888";
        key.append(patch, mode);
        return key;
      }));
    }
  }

  /* Stretches of the same mode, from the frames that ran in it: times of their results, modes, how long they took (s); so of results
     by their origin. */
  function stretches(t, modes, lasted = null) {
    const found = [];
    for (let i = 0; i < t.length; i++) {
      const until = i + 1 < t.length ? Math.min(t[i + 1], t[i] + GAP_S + (lasted ? lasted[i + 1] : 0)) : t[i] + 0.2;
      const last = found[found.length - 1];
      if (last && last[2] === modes[i] && t[i] <= last[1] + 1e-6) last[1] = until;
      else found.push([t[i], until, modes[i]]);
    }
    return found;
  }

  /* Whether results were carried along: some are not the network's own. */
  const carried = (results) => results.origin.some((one) => one === "carried" || one === "local");

  /* Rows of where results came from, by what was found: those that were carried along; named where there are several. */
  function origins(found) {
    const rows = Object.entries(found).filter(([, results]) => carried(results));
    return rows.map(([task, results]) => [rows.length > 1 ? task : "results", stretches(results.t, results.origin)]);
  }

  function eventRow(one, format) {
    const row = document.createElement("li"), marks = { ok: "●", info: "◦", warn: "▲", error: "■" };
    const cell = (tag, name, text) => { const made = document.createElement(tag); made.className = name; made.textContent = text; row.append(made); return made; };
    cell("time", "", format(one.t_s));
    cell("span", `level-${one.level}`, marks[one.level] || "◦").title = one.level;
    cell("span", "what", one.what);
    cell("span", "text", one.text);
    return row;
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const chart of charts) { chart.build(); if (chart.plot) chart.set(chart.data, ...chart.range, chart.empty.textContent); }
  });

  return { STAGES, MODES, Chart, Ribbon, latencyChart, withGaps, stretches, carried, origins, eventRow, clock, elapsed, round };
})();
