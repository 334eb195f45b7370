// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const fits = data.columns.findIndex((column) => column.title === "fits");
  const time = data.columns.findIndex((column) => column.title === "time");
  const rate = data.columns.findIndex((column) => column.title === "tokens/s");
  const chosen = [];
  let by = time < 0 ? Math.max(rate, 0) : time, ascending = time >= 0 || rate < 0;
  $("fitting").parentElement.hidden = fits < 0;

  const make = (tag, text, column) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (column && column.number) element.className = "number";
    return element;
  };

  const compare = (a, b) => {
    const [x, y] = [a[by][0], b[by][0]];
    if (x === null || y === null) return (x === null) - (y === null); // unknown values last
    const order = typeof x === "number" ? x - y : String(x).localeCompare(String(y));
    return ascending ? order : -order;
  };

  function head() {
    const row = make("tr");
    row.append(make("th"));
    data.columns.forEach((column, number) => {
      const cell = make("th", undefined, column), button = make("button", column.title);
      cell.setAttribute("aria-sort", number !== by ? "none" : ascending ? "ascending" : "descending");
      button.addEventListener("click", () => {
        ascending = number === by ? !ascending : true;
        by = number;
        draw();
      });
      cell.append(button, number === by ? (ascending ? " \u2191" : " \u2193") : "");
      row.append(cell);
    });
    $("table").tHead.replaceChildren(row);
  }

  function draw() {
    head();
    const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = data.rows.filter((row) => {
      const text = row.map((cell) => cell[1]).join(" ").toLowerCase();
      const isFitting = fits < 0 || row[fits][0] !== "NO";
      return words.every((word) => text.includes(word)) && (isFitting || !$("fitting").checked);
    });
    rows.sort(compare);
    $("table").tBodies[0].replaceChildren(...rows.map((row) => {
      const line = make("tr"), first = make("td"), box = make("input");
      box.type = "checkbox";
      box.checked = chosen.includes(row);
      box.setAttribute("aria-label", `compare ${row[0][1]}`);
      box.addEventListener("change", () => {
        if (box.checked) chosen.push(row); else chosen.splice(chosen.indexOf(row), 1);
        sides();
      });
      first.append(box);
      line.append(first, ...row.map((cell, i) => {
        const value = make("td", cell[2] ? undefined : cell[1], data.columns[i]);
        value.dataset.title = data.columns[i].title;
        value.classList.toggle("none", cell[0] === null);
        if (cell[2]) value.append(Object.assign(make("a", cell[1]), { href: cell[2] }));
        return value;
      }));
      return line;
    }));
    $("charts").replaceChildren(...data.charts.map((axes) => chart(rows, ...axes)).filter(Boolean));
    $("shown").textContent = `${rows.length} of ${data.rows.length} shown`;
  }

  // A point per row; those that no other row beats on both axes are joined.
  function chart(rows, xs, ys, moreX, moreY) {
    const known = rows.filter((row) => row[xs][0] !== null && row[ys][0] !== null);
    if (known.length < 2) return null;
    const width = 560, height = 300, left = 96, bottom = 44;
    const most = [xs, ys].map((axis) => 1.08 * Math.max(...known.map((row) => row[axis][0])) || 1);
    const x = (row) => left + (row[xs][0] / most[0]) * (width - left - 12);
    const y = (row) => height - bottom - (row[ys][0] / most[1]) * (height - bottom - 12);
    const svg = (tag, attributes, text) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
      if (text !== undefined) element.textContent = text;
      return element;
    };
    const sign = [moreX ? -1 : 1, moreY ? -1 : 1];
    const order = [...known].sort((a, b) =>
      sign[0] * (a[xs][0] - b[xs][0]) || sign[1] * (a[ys][0] - b[ys][0]));
    let best = Infinity;
    const front = order.filter((row) => sign[1] * row[ys][0] < best && ((best = sign[1] * row[ys][0]), true));
    const names = [xs, ys].map((axis) => data.columns[axis].title);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "plot", role: "img",
      "aria-label": `${names[1]} against ${names[0]}` });
    picture.append(
      svg("path", { d: `M${left},12 V${height - bottom} H${width - 12}`, fill: "none", stroke: "currentColor" }),
      svg("text", { x: (left + width) / 2, y: height - 8, class: "mid" }, names[0]),
      svg("text", { x: 12, y: height / 2 - 20, transform: `rotate(-90 12 ${height / 2 - 20})`, class: "mid" }, names[1]),
      svg("polyline", { points: front.map((row) => `${x(row)},${y(row)}`).join(" "), class: "roof" }));
    const ends = [[order[0], order[order.length - 1]], [...known].sort((a, b) => a[ys][0] - b[ys][0])];
    for (const row of new Set([ends[0][0], ends[0][1]]))
      picture.append(svg("text", { x: x(row), y: height - bottom + 16, class: "mid" }, row[xs][1]));
    for (const row of new Set([ends[1][0], ends[1][ends[1].length - 1]]))
      picture.append(svg("text", { x: left - 6, y: y(row) + 4, class: "end" }, row[ys][1]));
    for (const row of known) {
      const point = svg("circle", { cx: x(row), cy: y(row), r: 5, class: front.includes(row) ? "front" : "point" });
      point.append(svg("title", {}, `${row[0][1]}: ${row[ys][1]}, ${row[xs][1]}`));
      picture.append(point);
    }
    return picture;
  }

  function sides() {
    $("compared").hidden = !chosen.length;
    $("sides").tBodies[0].replaceChildren(...data.columns.map((column, i) => {
      const line = make("tr");
      line.append(make("th", column.title));
      const base = chosen.length ? chosen[0][i][0] : null;
      chosen.forEach((row, number) => {
        const [value, text] = row[i];
        const isRatio = number && column.number && base && value !== null;
        line.append(make("td", isRatio ? `${text} (${(value / base).toFixed(2)}x)` : text, column));
      });
      return line;
    }));
  }

  $("filter").addEventListener("input", draw);
  $("fitting").addEventListener("change", draw);
  draw();
})();
