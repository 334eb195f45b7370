// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const fits = data.columns.findIndex((column) => column.title === "fits");
  const time = data.columns.findIndex((column) => column.title === "time");
  const chosen = [];
  let by = time, ascending = true;

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
      line.append(first, ...row.map((cell, i) => make("td", cell[1], data.columns[i])));
      return line;
    }));
    $("shown").textContent = `${rows.length} of ${data.rows.length} shown`;
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
