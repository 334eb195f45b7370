// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const three = (v) => (v >= 100 ? v.toFixed(0) : v >= 10 ? v.toFixed(1) : v.toFixed(2));
  const duration = (ns) => {
    if (ns <= 0) return "0 s";
    for (const [scale, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "us"]])
      if (ns >= scale * 0.9995) return `${three(ns / scale)} ${unit}`;
    return `${three(ns)} ns`;
  };
  const size = (bytes) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let i = 0;
    while (i < units.length - 1 && bytes >= 1023.5) { bytes /= 1024; i += 1; }
    return `${i ? three(bytes) : Math.round(bytes)} ${units[i]}`;
  };
  const varName = (c) => (c < 0 ? "--o9" : c >= 100 ? `--c${c - 100}` : `--o${c}`);

  timeline();
  pictures();
  copies();

  function timeline() {
    const box = $("tl");
    if (!box || !data.lanes.length) return;
    const canvas = box.querySelector("canvas"), mini = $("mini"), tip = $("tip");
    const whole = Math.max(1, data.time_ns, ...data.lanes.map(end));
    let close = false;
    let lane, shown = [], boxes = [], view = [0, whole], drag = null, colours = {};

    function end(one) {
      return one.events.reduce((m, e) => Math.max(m, e[0] + e[1]), 0);
    }
    function palette() {
      colours = {};
      for (const name of ["--ink", "--soft", "--line", "--card", "--shade", "--memory", "--bad", "--accent", "--hover"])
        colours[name] = css(name);
      for (let i = 0; i < 10; i += 1) colours[`--o${i}`] = css(`--o${i}`);
      for (let i = 0; i < 5; i += 1) colours[`--c${i}`] = css(`--c${i}`);
    }
    // Functions around the ops, as spans: neighbours in the same call make one span per depth.
    function spans(one) {
      const rows = [], open = [];
      const close = (from) => {
        while (open.length > from) {
          const s = open.pop();
          rows[open.length].push(s);
        }
      };
      const sorted = one.events.filter((e) => e[6] !== undefined && one.words[e[6]]);
      sorted.sort((a, b) => a[0] - b[0]);
      for (const e of sorted) {
        const path = one.words[e[6]].split("/").slice(0, 4);
        let same = 0;
        while (same < path.length && same < open.length && open[same].name === path[same]) same += 1;
        close(same);
        for (let d = same; d < path.length; d += 1) {
          if (!rows[d]) rows[d] = [];
          open.push({ name: path[d], start: e[0], end: e[0] });
        }
        for (const s of open) s.end = Math.max(s.end, e[0] + e[1]);
      }
      close(0);
      return rows.filter((r) => r.length > 1 || (r.length === 1 && rows.length === 1));
    }
    // One lane in full, or (-1) the two streams of every lane, one under the other.
    function pick(i) {
      lane = i < 0 ? null : data.lanes[i];
      if (lane && !lane.spans) lane.spans = spans(lane);
      shown = lane ? [lane] : data.lanes;
      document.querySelector("[data-scale]").hidden = !lane || !lane.capacity;
      const total = shown.reduce((n, l) => n + l.total, 0);
      $("tl-note").textContent = shown.some((l) => l.joined)
        ? `${total} events; adjacent events shorter than a pixel are merged.`
        : `${total} events.`;
      draw();
    }
    const TOP = 24, ROW = 22, BLOCK = 44, THIN = 20, MEM = 130, GAP = 10, LABEL = 17;
    function layout() {
      const rows = [];
      let y = TOP;
      if (!lane) {
        for (const one of shown) {
          rows.push({ kind: "label", y, text: one.title });
          y += LABEL;
          for (const s of [0, 1]) {
            rows.push({ kind: "stream", y, h: THIN, s, lane: one });
            y += THIN + 2;
          }
          y += GAP - 4;
        }
        return { rows, height: y };
      }
      if (lane.spans.length) {
        rows.push({ kind: "label", y, text: "functions" });
        y += LABEL;
        lane.spans.forEach((r, d) => { rows.push({ kind: "span", y, h: ROW - 3, d }); y += ROW; });
        y += GAP - 4;
      }
      for (const [s, text] of [[0, "compute"], [1, "communication"]]) {
        rows.push({ kind: "label", y, text });
        y += LABEL;
        rows.push({ kind: "stream", y, h: BLOCK, s, lane });
        y += BLOCK + GAP;
      }
      if (lane.memory.length) {
        rows.push({ kind: "label", y, text: "live memory" });
        y += LABEL;
        rows.push({ kind: "memory", y, h: MEM });
        y += MEM + GAP;
      }
      return { rows, height: y };
    }
    function surface(c, width, height) {
      const ratio = window.devicePixelRatio || 1;
      c.width = Math.round(width * ratio);
      c.height = Math.round(height * ratio);
      c.style.height = `${height}px`;
      const g = c.getContext("2d");
      g.scale(ratio, ratio);
      return g;
    }
    function draw() {
      const width = box.clientWidth, { rows, height } = layout();
      const g = surface(canvas, width, height);
      const x = (t) => ((t - view[0]) / (view[1] - view[0])) * width;
      boxes = [];
      g.font = "12px system-ui, sans-serif";
      g.textBaseline = "middle";
      axis(g, width, height, x);
      for (const r of rows) {
        if (r.kind === "label") {
          g.fillStyle = colours["--soft"];
          g.textAlign = "left";
          g.fillText(r.text, 8, r.y + LABEL / 2);
        } else if (r.kind === "span") drawSpans(g, r, x, width);
        else if (r.kind === "stream") drawStream(g, r, x, width);
        else drawMemory(g, r, x, width);
      }
      if (drag && drag.moved) {
        g.fillStyle = colours["--accent"];
        g.globalAlpha = 0.18;
        g.fillRect(Math.min(drag.from, drag.to), 0, Math.abs(drag.to - drag.from), height);
        g.globalAlpha = 1;
      }
      drawMini();
    }
    function axis(g, width, height, x) {
      const range = view[1] - view[0], rough = range / Math.max(2, width / 110);
      const power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
      g.strokeStyle = colours["--line"];
      g.fillStyle = colours["--soft"];
      g.lineWidth = 1;
      for (let t = Math.ceil(view[0] / step) * step; t <= view[1]; t += step) {
        const at = Math.round(x(t)) + 0.5;
        g.beginPath();
        g.moveTo(at, 20);
        g.lineTo(at, height);
        g.stroke();
        g.textAlign = at < 24 ? "left" : at > width - 24 ? "right" : "center";
        g.fillText(label(t, step), Math.min(width - 3, Math.max(3, at)), 11);
      }
    }
    function label(t, step) {
      if (!t) return "0";
      const [scale, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]].find(([s]) => view[1] >= s);
      const digits = Math.min(6, Math.max(0, -Math.floor(Math.log10(step / scale) + 1e-9)));
      return `${(t / scale).toFixed(digits)} ${unit}`;
    }
    function words(g, text, x0, x1, y, colour) {
      const from = Math.max(x0, 0) + 5, room = x1 - from - 4;
      if (room < 22) return;
      let shown = text;
      if (g.measureText(shown).width > room) {
        const each = g.measureText("n").width;
        shown = `${text.slice(0, Math.max(1, Math.floor(room / each) - 1))}…`;
        if (shown.length < 4) return;
      }
      g.fillStyle = colour;
      g.textAlign = "left";
      g.save();
      g.beginPath();
      g.rect(from - 3, y - 12, room + 6, 24);
      g.clip();
      g.fillText(shown, from, y);
      g.restore();
    }
    function drawSpans(g, r, x, width) {
      for (const s of lane.spans[r.d]) {
        const a = x(s.start), b = x(s.end);
        if (b < 0 || a > width) continue;
        const w = Math.max(1, b - a - 1);
        g.fillStyle = colours["--hover"];
        g.fillRect(a, r.y, w, r.h);
        g.strokeStyle = colours["--line"];
        if (w > 4) g.strokeRect(a + 0.5, r.y + 0.5, w - 1, r.h - 1);
        words(g, s.name, a, Math.min(b, width), r.y + r.h / 2, colours["--ink"]);
        boxes.push([a, r.y, w, r.h, () => [s.name, `function, ${duration(s.end - s.start)}`, `from ${duration(s.start)}`]]);
      }
    }
    function drawStream(g, r, x, width) {
      g.fillStyle = colours["--shade"];
      g.fillRect(0, r.y, width, r.h);
      let last = -1;
      for (const e of r.lane.events) {
        if (e[2] !== r.s) continue;
        const a = x(e[0]), b = x(e[0] + e[1]);
        if (b < 0 || a > width) continue;
        const from = Math.max(a, last < 0 ? a : Math.min(last, b)), w = Math.max(b - from, 0.6);
        g.fillStyle = colours[varName(e[3])];
        g.fillRect(from, r.y, w > 3 ? w - 0.7 : w, r.h);
        last = b;
        if (w > 30) words(g, r.lane.words[e[5]].replace(/^(.+) of (?:.*\.)?(.+)$/, "$2: $1"), a, Math.min(b, width), r.y + r.h / 2, "#fff");
        if (b - a > 0.25) boxes.push([a, r.y, Math.max(b - a, 1.5), r.h, () => about(r.lane, e)]);
      }
    }
    function about(one, e) {
      const w = one.words, scope = w[e[6]];
      const lines = [w[e[4]], `${w[e[5]]}, ${duration(e[1])}`, `from ${duration(e[0])}`];
      if (w[e[7]]) lines.push(w[e[7]]);
      if (scope) lines.push(`in ${scope}`);
      return lines;
    }
    function memoryTop() {
      const peak = lane.memory.reduce((m, s) => Math.max(m, s[1]), 1);
      const cap = lane.capacity;
      return { peak, top: cap && !close && cap < peak * 50 ? Math.max(cap, peak) * 1.08 : peak * 1.25 };
    }
    function drawMemory(g, r, x, width) {
      const { peak, top } = memoryTop(), cap = lane.capacity;
      const y = (b) => r.y + r.h - (b / top) * r.h;
      g.fillStyle = colours["--shade"];
      g.fillRect(0, r.y, width, r.h);
      g.beginPath();
      let level = lane.memory[0][1];
      g.moveTo(x(lane.memory[0][0]), y(0));
      for (const [t, bytes] of lane.memory) {
        g.lineTo(x(t), y(level));
        g.lineTo(x(t), y(bytes));
        level = bytes;
      }
      g.lineTo(x(whole), y(level));
      g.lineTo(x(whole), y(0));
      g.closePath();
      g.fillStyle = colours["--memory"];
      g.globalAlpha = 0.55;
      g.fill();
      g.globalAlpha = 1;
      g.strokeStyle = colours["--memory"];
      g.stroke();
      if (cap && cap <= top) {
        g.strokeStyle = colours["--bad"];
        g.setLineDash([6, 4]);
        g.beginPath();
        g.moveTo(0, y(cap));
        g.lineTo(width, y(cap));
        g.stroke();
        g.setLineDash([]);
        g.fillStyle = colours["--bad"];
        g.textAlign = "right";
        g.fillText(`capacity ${size(cap)}`, width - 8, y(cap) + (y(cap) - r.y > 18 ? -9 : 10));
      }
      g.fillStyle = colours["--ink"];
      g.textAlign = "left";
      const above = y(peak) - r.y > 18;
      g.fillText(`peak ${size(peak)}`, 8, y(peak) + (above ? -9 : 11));
      boxes.push([0, r.y, width, r.h, (px) => {
        const t = view[0] + (px / width) * (view[1] - view[0]);
        let now = 0;
        for (const [at, bytes] of lane.memory) { if (at > t) break; now = bytes; }
        const lines = [`${size(now)} live`, `at ${duration(t)}`];
        if (cap) lines.push(`${((100 * now) / cap).toFixed(1)}% of ${size(cap)}`);
        return lines;
      }]);
    }
    function drawMini() {
      const width = mini.clientWidth, height = 30, g = surface(mini, width, height);
      const high = 24 / shown.length;
      shown.forEach((one, k) => one.events.forEach((e) => {
        g.fillStyle = colours[varName(e[3])];
        const a = (e[0] / whole) * width, w = Math.max(0.5, (e[1] / whole) * width);
        g.fillRect(a, 3 + k * high + (e[2] * high) / 2, w, high / 2 - (high > 4 ? 1 : 0));
      }));
      const a = (view[0] / whole) * width, b = (view[1] / whole) * width;
      g.fillStyle = colours["--card"];
      g.globalAlpha = 0.65;
      g.fillRect(0, 0, a, height);
      g.fillRect(b, 0, width - b, height);
      g.globalAlpha = 1;
      g.strokeStyle = colours["--accent"];
      g.strokeRect(a + 0.5, 0.5, Math.max(2, b - a - 1), height - 1);
    }
    function show(from, to) {
      const least = Math.max(20, whole / 1e6), range = Math.min(whole, Math.max(least, to - from));
      const start = Math.min(Math.max(0, from), whole - range);
      view = [start, start + range];
      tip.hidden = true;
      draw();
    }
    function zoom(factor, at) {
      const range = view[1] - view[0], centre = at === undefined ? (view[0] + view[1]) / 2 : at;
      const part = (centre - view[0]) / range;
      show(centre - part * range * factor, centre + (1 - part) * range * factor);
    }
    const shift = (part) => { const by = part * (view[1] - view[0]); show(view[0] + by, view[1] + by); };
    const place = (event) => {
      const r = canvas.getBoundingClientRect();
      return [event.clientX - r.left, event.clientY - r.top];
    };
    function hover(event) {
      const [px, py] = place(event);
      let best = null;
      for (const b of boxes)
        if (py >= b[1] && py <= b[1] + b[3] && px >= b[0] - 1 && px <= b[0] + b[2] + 1 && (!best || b[2] < best[2])) best = b;
      tip.hidden = !best;
      if (!best) return;
      tip.replaceChildren(...best[4](px).map((line, i) => {
        const part = document.createElement(i ? "span" : "b");
        part.textContent = line;
        return part;
      }));
      const room = box.clientWidth - tip.offsetWidth - 6;
      tip.style.left = `${Math.max(4, Math.min(px + 14, room))}px`;
      const under = py + 18 + tip.offsetHeight < box.clientHeight;
      tip.style.top = `${under ? py + 16 : Math.max(4, py - tip.offsetHeight - 12)}px`;
    }
    canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "touch") { hover(event); return; }
      drag = { from: place(event)[0], to: place(event)[0], moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drag) { hover(event); return; }
      drag.to = place(event)[0];
      drag.moved = drag.moved || Math.abs(drag.to - drag.from) > 4;
      draw();
    });
    canvas.addEventListener("pointerup", () => {
      if (!drag) return;
      const { from, to, moved } = drag;
      drag = null;
      if (!moved) return;
      const t = (px) => view[0] + (px / box.clientWidth) * (view[1] - view[0]);
      show(t(Math.min(from, to)), t(Math.max(from, to)));
    });
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
    canvas.addEventListener("dblclick", () => show(0, whole));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const t = view[0] + (place(event)[0] / box.clientWidth) * (view[1] - view[0]);
      zoom(event.deltaY > 0 ? 1.25 : 0.8, t);
    }, { passive: false });
    let held = null;
    mini.addEventListener("pointerdown", (event) => {
      held = event.pointerId;
      mini.setPointerCapture(held);
      centre(event);
    });
    mini.addEventListener("pointermove", (event) => { if (held !== null) centre(event); });
    mini.addEventListener("pointerup", () => { held = null; });
    function centre(event) {
      const r = mini.getBoundingClientRect(), range = view[1] - view[0];
      const at = ((event.clientX - r.left) / r.width) * whole;
      show(at - range / 2, at + range / 2);
    }
    box.addEventListener("keydown", (event) => {
      const act = {
        ArrowLeft: () => shift(-0.2), ArrowRight: () => shift(0.2),
        "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1.6), 0: () => show(0, whole),
      }[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    });
    for (const b of document.querySelectorAll("[data-zoom]"))
      b.addEventListener("click", () => ({ in: () => zoom(0.5), out: () => zoom(2), all: () => show(0, whole) })[b.dataset.zoom]());
    const scale = document.querySelector("[data-scale]");
    scale.addEventListener("click", () => {
      close = !close;
      scale.setAttribute("aria-pressed", String(close));
      draw();
    });
    const tabs = [...document.querySelectorAll("[data-lane]")];
    for (const b of tabs)
      b.addEventListener("click", () => {
        tabs.forEach((o) => o.setAttribute("aria-pressed", String(o === b)));
        pick(Number(b.dataset.lane));
      });
    const used = new Set(data.lanes.flatMap((l) => l.events.map((e) => e[3])));
    const legend = data.legend.filter(([, c]) => used.has(c));
    if (used.has(9) || used.has(-1)) legend.push(["other ops", 9]);
    $("tl-legend").replaceChildren(...legend.map(([op, c]) => {
      const item = document.createElement("span"), square = document.createElement("i");
      square.className = "sw";
      square.style.background = `var(${varName(c)})`;
      item.append(square, op);
      return item;
    }));
    palette();
    pick(data.lanes.length > 1 ? -1 : 0);
    new ResizeObserver(() => draw()).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { palette(); draw(); });
  }

  function pictures() {
    const tensor = $("pic-tensor"), grid = $("pic-mesh");
    if (!tensor || !data.params.length) return;
    const space = tensor.namespaceURI;
    const rows = [...document.querySelectorAll("[data-param]")];

    function make(parent, name, attributes, text) {
      const one = document.createElementNS(space, name);
      for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
      if (text !== undefined) one.textContent = text;
      parent.append(one);
      return one;
    }
    const hue = (i, n) => (n === 1 ? "var(--o0)" : `hsl(${Math.round((215 + (360 * i) / n) % 360)} 58% ${i % 2 ? 46 : 56}%)`);

    // Which part a device holds: its coordinates along the axes that shard, row-major per dim.
    function cut(p, mesh) {
      const labels = p.placement.split(/,\s*(?![^[]*\])/).map((t) => (/^S\[(\d+)\]$/.exec(t.trim()) || [])[1]);
      const pieces = p.shape.map(() => 1);
      labels.forEach((d, a) => { if (d !== undefined && d < pieces.length) pieces[d] *= mesh.shape[a]; });
      const dims = pieces.map((n, d) => d).filter((d) => pieces[d] > 1);
      const parts = mesh.devices.map((_, i) => {
        const at = {};
        let rest = i;
        const where = mesh.shape.map((_, a) => {
          const below = mesh.shape.slice(a + 1).reduce((x, y) => x * y, 1);
          const c = Math.floor(rest / below);
          rest %= below;
          return c;
        });
        labels.forEach((d, a) => { if (d !== undefined) at[d] = (at[d] || 0) * mesh.shape[a] + where[a]; });
        return { where, at, part: dims.reduce((n, d) => n * pieces[d] + (at[d] || 0), 0) };
      });
      return { pieces, dims, parts, total: dims.reduce((n, d) => n * pieces[d], 1) };
    }
    function choose(i) {
      rows.forEach((r) => r.classList.toggle("on", Number(r.dataset.param) === i));
      const p = data.params[i], mesh = data.meshes.find((m) => m.name === p.mesh) || data.meshes[0];
      const c = cut(p, mesh);
      $("pic-name").textContent = p.name;
      const copies = mesh.devices.length / c.total;
      $("pic-words").textContent = c.total === 1
        ? `Replicated: each of the ${mesh.devices.length} devices stores the full tensor (${size(p.bytes)}).`
        : `Sharded into ${c.total} parts of ${size(p.bytes)}; ${copies === 1 ? "one per device" : `each stored on ${copies} devices`}.`;
      drawTensor(p, mesh, c);
      drawMesh(mesh, c);
    }
    function drawTensor(p, mesh, c) {
      tensor.replaceChildren();
      // Rows and columns of the picture: the sharded dims first, else the last two.
      const rank = p.shape.length;
      let shown = c.dims.slice(0, 2);
      for (let d = rank - 1; d >= 0 && shown.length < Math.min(2, rank); d -= 1) if (!shown.includes(d)) shown.push(d);
      shown.sort((a, b) => a - b);
      const [dy, dx] = shown.length === 2 ? shown : [undefined, shown[0]];
      const ext = (d) => (d === undefined ? 1 : p.shape[d]);
      const ratio = Math.min(2.4, Math.max(0.42, ext(dy) / Math.max(1, ext(dx))));
      const W = 300, left = 34, top = 22;
      let w = W - left - 4, h = dy === undefined ? 34 : w * ratio;
      if (h > 190) { w = Math.max(70, w * (190 / h)); h = 190; }
      tensor.setAttribute("viewBox", `0 0 ${W} ${Math.ceil(h + top + 6)}`);
      const ny = dy === undefined ? 1 : c.pieces[dy], nx = dx === undefined ? 1 : c.pieces[dx];
      for (let y = 0; y < ny; y += 1)
        for (let x = 0; x < nx; x += 1) {
          const at = { [dy]: y, [dx]: x };
          const part = c.dims.reduce((n, d) => n * c.pieces[d] + (at[d] || 0), 0);
          const holds = c.parts.map((q, k) => (q.part === part ? mesh.devices[k] : -1)).filter((d) => d >= 0);
          const cell = make(tensor, "rect", {
            x: left + (x * w) / nx, y: top + (y * h) / ny, width: w / nx, height: h / ny,
            fill: hue(part, c.total), stroke: "var(--card)", "stroke-width": c.total > 40 ? 0.6 : 1.6,
          });
          make(cell, "title", {}, `shard ${part} of ${c.total}: device ${holds.join(", ")}`);
          if (w / nx > 20 && h / ny > 14)
            make(tensor, "text", { x: left + ((x + 0.5) * w) / nx, y: top + ((y + 0.5) * h) / ny + 4, "text-anchor": "middle", style: "fill:#fff" }, String(part));
        }
      if (dx !== undefined) make(tensor, "text", { x: left + w / 2, y: 14, "text-anchor": "middle", class: "soft" }, `dim ${dx}: ${p.shape[dx]}${nx > 1 ? ` / ${nx}` : ""}`);
      if (dy !== undefined) {
        const mid = top + h / 2;
        make(tensor, "text", { x: 14, y: mid, transform: `rotate(-90 14 ${mid})`, "text-anchor": "middle", class: "soft" }, `dim ${dy}: ${p.shape[dy]}${ny > 1 ? ` / ${ny}` : ""}`);
      }
    }
    // The last axis runs to the right, the one before downwards, the next ones repeat blocks of these.
    function drawMesh(mesh, c) {
      grid.replaceChildren();
      const n = mesh.shape.length, span = [[1, 0], [1, 0]];
      const steps = mesh.shape.map(() => [0, 0]);
      let wide = 1, high = 1;
      for (let a = n - 1; a >= 0; a -= 1) {
        const right = (n - 1 - a) % 2 === 0, gap = n - 1 - a >= 2 ? 0.35 : 0;
        if (right) { steps[a] = [wide + gap, 0]; wide = mesh.shape[a] * (wide + gap) - gap; }
        else { steps[a] = [0, high + gap]; high = mesh.shape[a] * (high + gap) - gap; }
      }
      const W = 300, left = n > 1 ? 34 : 4, top = 22, cell = Math.min(46, (W - left - 4) / wide);
      grid.setAttribute("viewBox", `0 0 ${W} ${Math.ceil(top + high * cell + 8)}`);
      mesh.devices.forEach((device, i) => {
        const { where, part } = c.parts[i];
        const x = left + where.reduce((s, v, a) => s + v * steps[a][0], 0) * cell;
        const y = top + where.reduce((s, v, a) => s + v * steps[a][1], 0) * cell;
        const pad = cell > 12 ? 1.5 : 0.5;
        const one = make(grid, "rect", { x: x + pad, y: y + pad, width: cell - 2 * pad, height: cell - 2 * pad, rx: Math.min(5, cell / 6), fill: hue(part, c.total) });
        const words = where.map((v, a) => `${mesh.axes[a]}=${v}`).join(", ");
        make(one, "title", {}, `device ${device} (${words}) stores shard ${part} of ${c.total}`);
        if (cell >= 19)
          make(grid, "text", { x: x + cell / 2, y: y + cell / 2 + 4, "text-anchor": "middle", style: `fill:#fff;font-size:${cell > 28 ? 12 : 10}px` }, String(device));
      });
      const named = (a) => `${mesh.axes[a]} = ${mesh.shape[a]}`;
      const right = [], down = [];
      for (let a = n - 1; a >= 0; a -= 1) ((n - 1 - a) % 2 === 0 ? right : down).unshift(named(a));
      make(grid, "text", { x: left, y: 14, class: "soft" }, `${right.join(", ")} \u2192`);
      if (down.length) {
        const mid = top + (high * cell) / 2;
        make(grid, "text", { x: 14, y: mid, transform: `rotate(-90 14 ${mid})`, "text-anchor": "middle", class: "soft" }, `\u2190 ${down.join(", ")}`);
      }
    }
    rows.forEach((r) => r.addEventListener("click", () => choose(Number(r.dataset.param))));
    $("filter").addEventListener("input", (event) => {
      const wanted = event.target.value.toLowerCase();
      rows.forEach((r) => { r.hidden = !r.textContent.toLowerCase().includes(wanted); });
    });
    const sharded = data.params.findIndex((p) => p.placement.includes("S["));
    choose(Math.max(0, sharded));
  }

  function copies() {
    for (const b of document.querySelectorAll("[data-copy]"))
      b.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText($(b.dataset.copy).textContent);
          b.textContent = "copied";
        } catch {
          getSelection().selectAllChildren($(b.dataset.copy));
          b.textContent = "selected";
        }
        setTimeout(() => { b.textContent = "copy"; }, 1500);
      });
  }
})();
