/* Draws the plots of a report from the figures embedded in the page. */
"use strict";
(() => {
  const run = JSON.parse(document.getElementById("run").textContent);
  const { end, latency } = run, begin = 0, format = EdgeCharts.elapsed;
  const byId = (id) => document.getElementById(id), none = "not in this file";
  const options = { format, zoomable: true };
  // a single instant still needs a width
  const last = Math.max(end, begin + 1);

  const asked = run.modes.map(([t, mode], i) => [t, i + 1 < run.modes.length ? run.modes[i + 1][0] : last, mode]);
  const ran = EdgeCharts.stretches(latency.t, latency.mode, latency.total);
  const gave = EdgeCharts.origins(run.results);
  const ribbon = new EdgeCharts.Ribbon(byId("ribbon"));
  const charts = [];
  const zoom = (from, to) => { ribbon.set(asked, ran, gave, from, to); charts.forEach((chart) => chart.show(from, to)); };
  options.onZoom = zoom;
  options.onReset = () => zoom(begin, last);

  const stacked = EdgeCharts.latencyChart(byId("chart-latency"), { ...options, height: 320 });
  charts.push(stacked.chart);
  stacked.set(latency, begin, last, none);
  ribbon.set(asked, ran, gave, begin, last);
  const more = run.frames - latency.t.length;
  byId("thinned").textContent = more > 0 ? `Drawn from ${latency.t.length} of ${run.frames} frames: of every slice of time the slowest and the median one. The tables count all.` : "";

  function plot(id, name, series, t, columns, lasted = null, extra = {}) {
    const chart = new EdgeCharts.Chart(byId(id), { ...options, name, series, height: 180, ...extra });
    charts.push(chart);
    chart.set(EdgeCharts.withGaps(t, columns, lasted), begin, last, none);
  }
  plot("chart-bandwidth", "bandwidth, Mbit/s", [{ label: "up", stroke: "#56b4e9" }, { label: "down", stroke: "#0072b2", dash: [6, 3] }], run.bandwidth.t, [run.bandwidth.up, run.bandwidth.down]);
  plot("chart-energy", "energy per frame, joules", [{ label: "energy", stroke: "#cc79a7", fill: "#cc79a733" }], latency.t, [latency.energy], latency.total);
  plot("chart-power", "power of the robot, watts", [{ label: "power", stroke: "#e69f00", fill: "#e69f0033" }], run.power.t, [run.power.watts]);
  plot("chart-server", "server load, percent", [{ label: "load", stroke: "#009e73", fill: "#009e7333" }], run.server.t, [run.server.load], null, { yMax: 100 });

  // the distribution: latency across, share of the frames up, one line per mode
  const modes = Object.keys(run.share);
  const across = [...new Set(modes.flatMap((mode) => run.share[mode].map((s) => s * 1e3)))].sort((a, b) => a - b);
  const share = (quantiles) => across.map((ms) => {
    const s = ms / 1e3, step = 100 / (quantiles.length - 1);
    if (s < quantiles[0]) return 0;
    if (s >= quantiles[quantiles.length - 1]) return 100;
    let i = 0;
    while (quantiles[i + 1] <= s) i++;
    return (i + (s - quantiles[i]) / (quantiles[i + 1] - quantiles[i])) * step;
  });
  const distribution = new EdgeCharts.Chart(byId("chart-share"), {
    name: "share of frames by latency", xLabel: "ms", sync: null, height: 180, yMax: 100,
    series: modes.map((mode) => ({ label: mode, stroke: EdgeCharts.MODES[mode], width: 2 })),
  });
  distribution.set([across, ...modes.map((mode) => share(run.share[mode]))], 0, across[across.length - 1] || 1, none);

  byId("events").replaceChildren(...run.events.map((one) => EdgeCharts.eventRow(one, format)));
})();
