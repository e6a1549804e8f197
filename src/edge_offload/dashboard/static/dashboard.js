/* The live page: takes what the server says over a WebSocket, keeps ten minutes of it, draws it. */
"use strict";
(() => {
  const KEEP_S = 610, KEEP_ROWS = 6500, KEEP_EVENTS = 300, SILENT_S = 5;
  const { clock, round, STAGES } = EdgeCharts;
  const byId = (id) => document.getElementById(id);
  const state = { status: null, title: "", heardAt: 0, paused: false, skipped: 0, socket: null, retry: 500, why: "" };
  let kept;

  const empty = () => ({
    latency: { t: [], total: [], stages: STAGES.map(() => []), mode: [], fallback: [], deadline: [], late: [], energy: [] },
    bandwidth: { t: [], up: [], down: [] }, power: { t: [], watts: [] }, server: { t: [], load: [] },
    mode: { t: [], mode: [] }, people: { t: [], origin: [] }, scene: { t: [], origin: [] }, newest: {}, events: [], levels: new Map(), pictureAt: null,
  });

  const take = {
    latency(r) {
      const c = kept.latency;
      c.t.push(r.t_s); c.total.push(r.total_s); c.mode.push(r.mode); c.fallback.push(Boolean(r.fallback_reason || r.error));
      c.deadline.push(r.deadline_s || 0); c.late.push(r.deadline_s > 0 && r.deadline_met === false);
      c.energy.push(r.energy_j == null ? null : r.energy_j);
      STAGES.forEach((stage, k) => c.stages[k].push(r.stages_s[stage.key] || 0));
    },
    bandwidth(r) {
      const c = kept.bandwidth;
      c.t.push(r.t_s); c.up.push(r.uplink_bytes_per_s * 8e-6); c.down.push(r.downlink_bytes_per_s * 8e-6);
    },
    power(r) { kept.power.t.push(r.t_s); kept.power.watts.push(r.watts); },
    server(r) { kept.server.t.push(r.t_s); kept.server.load.push(r.load * 100); },
    people(r) { kept.people.t.push(r.t_s); kept.people.origin.push(r.origin || "fresh"); },
    scene(r) { kept.scene.t.push(r.t_s); kept.scene.origin.push(r.origin || "fresh"); },
    mode(r) { kept.mode.t.push(r.t_s); kept.mode.mode.push(r.mode); },
    diagnostic(r) { if (r.battery) kept.battery = r.battery; if (kept.levels.size < 300 || kept.levels.has(r.name)) kept.levels.set(r.name, r); },
  };

  /* Columns are cut from the front, in one go, when they are well over what is kept. */
  function prune() {
    for (const [name, columns] of Object.entries(kept)) {
      const t = columns && columns.t;
      if (!t || name === "mode") continue;
      let cut = Math.max(0, t.length - KEEP_ROWS);
      while (cut < t.length && t[cut] < t[t.length - 1] - KEEP_S) cut++;
      if (cut < 200) continue;
      const trim = (column) => (Array.isArray(column[0]) ? column.forEach(trim) : column.splice(0, cut));
      Object.values(columns).forEach(trim);
    }
    const modes = kept.mode.t.length - 500;
    if (modes > 0) { kept.mode.t.splice(0, modes); kept.mode.mode.splice(0, modes); }
    kept.events.splice(0, Math.max(0, kept.events.length - KEEP_EVENTS));
  }

  function onText(message) {
    if (message.reset) { kept = empty(); byId("camera").hidden = true; }
    if (message.title !== undefined) state.title = message.title;
    if (message.status) state.status = { ...message.status, at: performance.now() };
    state.skipped += message.skipped || 0;
    for (const [kind, list] of Object.entries(message.records || {})) {
      if (take[kind]) list.forEach(take[kind]);
      if (list.length) kept.newest[kind] = list[list.length - 1];
    }
    kept.events.push(...(message.events || []));
    if (message.events && message.events.length) kept.eventsChanged = true;
    prune();
  }

  /* The newest picture only: one that comes while another is being decoded replaces the one that waits. */
  let decoding = false, waiting = null;
  function onPicture(buffer) {
    if (decoding || document.hidden || state.paused) { waiting = buffer; return; }
    decoding = true; waiting = null;
    const image = byId("camera"), url = URL.createObjectURL(new Blob([new Uint8Array(buffer, 8)]));
    const done = (ok) => () => {
      URL.revokeObjectURL(url);
      decoding = false;
      image.hidden = !ok && image.hidden;
      if (ok) { image.hidden = false; kept.pictureAt = new DataView(buffer).getFloat64(0); }
      if (waiting) onPicture(waiting);
    };
    image.onload = done(true); image.onerror = done(false);
    image.src = url;
  }

  function connect() {
    const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/stream`);
    socket.binaryType = "arraybuffer";
    state.socket = socket;
    socket.onmessage = ({ data }) => {
      state.heardAt = performance.now(); state.retry = 500; state.why = "";
      if (typeof data === "string") onText(JSON.parse(data)); else onPicture(data);
    };
    socket.onclose = (event) => {
      state.why = event.reason || "no connection to the dashboard";
      setTimeout(connect, state.retry);
      state.retry = Math.min(5000, state.retry * 2);
    };
  }

  function sourceNow() {
    const { status } = state;
    if (!status || status.now_s == null) return null;
    return status.now_s + (["live", "playing", "lost"].includes(status.state) ? Math.min(2, (performance.now() - status.at) / 1e3) : 0);
  }

  const from = (t, begin) => { let low = 0, high = t.length; while (low < high) { const middle = (low + high) >> 1; if (t[middle] < begin) low = middle + 1; else high = middle; } return Math.max(0, low - 1); };
  const rank = (sorted, share) => (sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] : null);

  function tile(name, big, small, level = "") {
    const element = byId(`tile-${name}`);
    element.classList.remove("warn", "error");
    if (level) element.classList.add(level);
    const [first, second] = element.querySelectorAll("p");
    first.textContent = big; second.textContent = small;
    first.title = big; second.title = small;
  }

  const waits = (kind) => {
    const text = state.status && state.status.waits_for && state.status.waits_for[kind];
    if (text) return `waiting for ${text}`;
    return state.status && state.status.state === "ended" ? "not in this file" : "nothing yet";
  };
  const age = (kind, now) => { const newest = kept.newest[kind]; return newest && now != null && now - newest.t_s > SILENT_S ? `last ${Math.round(now - newest.t_s)} s ago` : ""; };

  function drawHead(now) {
    byId("title").textContent = state.title;
    const chip = byId("connection"), silent = performance.now() - state.heardAt > 4000;
    const { status } = state;
    const known = { live: ["live", "ok"], playing: ["playing", "ok"], waiting: ["waiting", "warn"], lost: ["no master", "error"], ended: ["ended", ""], failed: ["failed", "error"] };
    const begun = !status && !state.why && performance.now() < 20000;
    const [word, level] = begun ? ["connecting …", ""] : silent || !status ? ["no connection", "error"] : known[status.state] || [status.state, ""];
    chip.textContent = word; chip.className = `chip ${level}`;
    const say = silent && state.why ? `${state.why}; trying again` : status && status.text;
    const skipped = state.skipped ? `this browser is slow: ${state.skipped} records were skipped` : "";
    const notice = byId("notice"), text = [say, skipped].filter(Boolean).join(" · ");
    notice.hidden = !text; notice.textContent = text;
    const bad = [...kept.levels.values()].filter((one) => one.level !== "ok"), health = byId("health");
    health.hidden = !kept.levels.size;
    const error = bad.some((one) => one.level === "error");
    health.textContent = bad.length ? `${bad.length} of ${kept.levels.size} nodes ${error ? "in trouble" : "warn"}` : kept.levels.size === 1 ? "1 node fine" : `${kept.levels.size} nodes fine`;
    health.className = `chip ${bad.length ? (error ? "error" : "warn") : "ok"}`;
    health.title = bad.map((one) => `${one.name}: ${one.message}`).join("\n");
    return now;
  }

  function drawTiles(rows, now) {
    const { mode, bandwidth, power, server, latency } = kept.newest, count = rows.t.length;
    const ran = {};
    rows.mode.forEach((one) => { ran[one] = (ran[one] || 0) + 1; });
    const shares = Object.entries(ran).sort((a, b) => b[1] - a[1]).map(([name, number]) => `${name} ${Math.round((100 * number) / count)} %`).join(", ");
    tile("mode", mode ? mode.mode : "–", mode ? [shares ? `ran: ${shares}` : "", mode.reason].filter(Boolean).join(" · ") : waits("mode"));
    const carried = [kept.people, kept.scene].some(EdgeCharts.carried);
    const sorted = [...rows.total].sort((a, b) => a - b), seconds = count > 1 ? rows.t[count - 1] - rows.t[0] : 0;
    const given = [...kept.people.t, ...kept.scene.t].filter((t) => count && t >= rows.t[0] && t <= rows.t[count - 1]).length;
    const speed = `${round((count - 1) / seconds, 2)} ${carried ? `inferences/s, ${round((given - 1) / seconds, 2)} results/s` : "frames/s"}`;
    tile("latency", count ? `${round(rank(sorted, 0.5) * 1e3)} ms` : "–", count ? [age("latency", now), `p99 ${round(rank(sorted, 0.99) * 1e3)} ms`, seconds ? speed : ""].filter(Boolean).join(" · ") : waits("latency"), age("latency", now) ? "warn" : "");
    const back = rows.fallback.filter(Boolean).length, late = rows.late.filter(Boolean).length;
    const deadline = latency && latency.deadline_s > 0 ? `${late} later than ${round(latency.deadline_s * 1e3)} ms` : "no deadline set";
    tile("faults", count ? `${back} of ${count}` : "–", count ? deadline : "", back || late ? "warn" : "");
    if (!bandwidth) tile("link", "–", waits("bandwidth"));
    else if (!bandwidth.connected) tile("link", "down", `${bandwidth.peer || "the server"} does not answer`, "error");
    else {
      tile("link", bandwidth.source === "none" ? "not measured" : `${round(bandwidth.uplink_bytes_per_s * 8e-6)} / ${round(bandwidth.downlink_bytes_per_s * 8e-6)}`,
        [age("bandwidth", now), `round trip ${round((bandwidth.round_trip_s || 0) * 1e3)} ms`].filter(Boolean).join(" · "));
    }
    const joules = rows.energy.filter((one) => one != null);
    tile("energy", joules.length ? `${round(joules.reduce((a, b) => a + b, 0) / joules.length)} J` : "–",
      [power ? `now ${round(power.watts)} W` : waits("power"), power ? { measured: "measured", model: "modelled" }[power.source] || "" : "", kept.battery ? `battery ${kept.battery}` : ""].filter(Boolean).join(", "));
    tile("server", server ? `${round(server.load * 100)} %` : "–", server ? [age("server", now) || server.state, `${server.robots} robot${server.robots === 1 ? "" : "s"}`, `queue ${server.queue_length}`].join(" · ") : waits("server"), server && server.state === "stopping" ? "warn" : "");
    byId("power-source").textContent = power ? `W, ${{ measured: "measured", model: "modelled" }[power.source] || "source unknown"} (${power.sensor || "?"})` : "W";
    const people = kept.newest.people;
    byId("camera-caption").textContent = [people ? `${people.people} ${people.people === 1 ? "person" : "people"}` : "", people && people.origin && people.origin !== "none" ? people.origin : "", kept.pictureAt && now != null && now - kept.pictureAt > SILENT_S ? `picture is ${Math.round(now - kept.pictureAt)} s old` : ""].filter(Boolean).join(" · ");
    byId("camera-empty").textContent = byId("camera").hidden ? (state.status && ["playing", "ended"].includes(state.status.state) ? "a file of records holds no pictures" : waits("picture")) : "";
  }

  const charts = {
    latency: EdgeCharts.latencyChart(byId("chart-latency")),
    ribbon: new EdgeCharts.Ribbon(byId("ribbon")),
    bandwidth: new EdgeCharts.Chart(byId("chart-bandwidth"), { name: "bandwidth, Mbit/s", series: [{ label: "up", stroke: "#56b4e9" }, { label: "down", stroke: "#0072b2", dash: [6, 3] }] }),
    power: new EdgeCharts.Chart(byId("chart-power"), { name: "power of the robot, watts", series: [{ label: "power", stroke: "#e69f00", fill: "#e69f0033" }] }),
    energy: new EdgeCharts.Chart(byId("chart-energy"), { name: "energy per frame, joules", series: [{ label: "energy", stroke: "#cc79a7", fill: "#cc79a733" }] }),
    server: new EdgeCharts.Chart(byId("chart-server"), { name: "server load, percent", yMax: 100, series: [{ label: "load", stroke: "#009e73", fill: "#009e7333" }] }),
  };

  function cut(columns, begin) {
    const start = from(columns.t, begin), result = {};
    for (const [name, column] of Object.entries(columns)) result[name] = Array.isArray(column[0]) ? column.map((one) => one.slice(start)) : column.slice(start);
    return result;
  }

  function drawEvents() {
    if (!kept.eventsChanged) return;
    kept.eventsChanged = false;
    byId("events").replaceChildren(...kept.events.slice(-100).reverse().map((one) => EdgeCharts.eventRow(one, clock)));
    byId("events-empty").hidden = kept.events.length > 0;
  }

  function draw() {
    const now = sourceNow(), span = Number(byId("window").value);
    drawHead(now);
    if (state.paused) return;
    const end = now == null ? Date.now() / 1e3 : now, begin = end - span;
    const rows = cut(kept.latency, begin);
    drawTiles(rows, now);
    charts.latency.set(rows, begin, end, waits("latency"));
    const asked = kept.mode.t.map((t, i) => [t, i + 1 < kept.mode.t.length ? kept.mode.t[i + 1] : end, kept.mode.mode[i]]);
    charts.ribbon.set(asked, EdgeCharts.stretches(rows.t, rows.mode, rows.total), EdgeCharts.origins({ people: kept.people, scene: kept.scene }), begin, end);
    const band = cut(kept.bandwidth, begin), power = cut(kept.power, begin), server = cut(kept.server, begin);
    charts.bandwidth.set(EdgeCharts.withGaps(band.t, [band.up, band.down]), begin, end, waits("bandwidth"));
    charts.power.set(EdgeCharts.withGaps(power.t, [power.watts]), begin, end, waits("power"));
    charts.energy.set(EdgeCharts.withGaps(rows.t, [rows.energy], rows.total), begin, end, waits("latency"));
    charts.server.set(EdgeCharts.withGaps(server.t, [server.load]), begin, end, waits("server"));
    drawEvents();
  }

  byId("pause").addEventListener("click", () => {
    state.paused = !state.paused;
    byId("pause").setAttribute("aria-pressed", String(state.paused));
    byId("pause").textContent = state.paused ? "Go on" : "Pause";
    if (!state.paused && waiting) onPicture(waiting);
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && waiting) onPicture(waiting); });

  kept = empty();
  connect();
  setInterval(() => { if (!document.hidden) draw(); }, 200);
  draw();
})();
