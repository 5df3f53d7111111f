// Fetches this page again every second, and replaces only what changed, so that focus, selection and scrolling stay.
"use strict";
(() => {
  const every = 1000;
  let away = null;

  const coarse = (seconds) => {
    if (seconds < 120) return `${seconds}s`;
    if (seconds < 7200) return `${Math.floor(seconds / 60)}m`;
    if (seconds < 172800) return `${Math.floor(seconds / 3600)}h`;
    return `${Math.floor(seconds / 86400)}d`;
  };

  // The server's clock dates what is shown, whatever this machine's clock says.
  let behind = Date.now() - Number(document.body.dataset.now);
  const count = () => {
    for (const time of document.querySelectorAll("time:not(.at)")) {
      const age = Math.max(0, Math.floor((Date.now() - behind - Date.parse(time.dateTime)) / 1000));
      const text = coarse(age);
      if (time.textContent !== text) time.textContent = text;
    }
  };

  const replace = (old, fresh) => {
    if (old.isEqualNode(fresh)) return;
    const same = old.nodeName === fresh.nodeName && old.id === fresh.id;
    const parts = ["MAIN", "SECTION", "TABLE", "TBODY"];
    if (!same || !parts.includes(old.nodeName)) {
      old.replaceWith(fresh);
      return;
    }
    for (const { name, value } of fresh.attributes) old.setAttribute(name, value);
    const before = [...old.children];
    const after = [...fresh.children];
    after.forEach((child, at) => {
      if (at < before.length) replace(before[at], child);
      else old.append(child);
    });
    before.slice(after.length).forEach((child) => child.remove());
  };

  const show = (text) => {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const live = document.getElementById("live");
    const focused = live.contains(document.activeElement) && document.activeElement.getAttribute("href");
    behind = Date.now() - Number(fresh.body.dataset.now);
    document.title = fresh.title;
    replace(live, fresh.getElementById("live"));
    if (focused && !live.contains(document.activeElement)) {
      for (const link of live.querySelectorAll("a")) {
        if (link.getAttribute("href") === focused) {
          link.focus({ preventScroll: true });
          break;
        }
      }
    }
  };

  const tell = () => {
    let note = document.getElementById("away");
    if (away === null) {
      if (note) note.remove();
      return;
    }
    if (!note) {
      note = document.createElement("p");
      note.id = "away";
      note.setAttribute("role", "alert");
      document.querySelector("header").after(note);
    }
    note.textContent = `This page has not been updated since ${away}: leaderctl serve does not answer, or does not have this page.`;
  };

  const ask = async () => {
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      if (answer.status !== 200) throw new Error(answer.statusText);
      show(await answer.text());
      away = null;
    } catch {
      away = away || new Date().toISOString().slice(0, 19) + "Z";
    }
    tell();
    count();
  };

  const form = document.getElementById("wish");
  const wish = () => {
    const query = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value) query.append(name, value);
    history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
    return ask();
  };
  form.querySelector("button").hidden = true;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    wish();
  });
  form.addEventListener("change", wish);
  let typing = 0;
  form.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(wish, 150);
  });
  document.addEventListener("keydown", (event) => {
    const search = form.querySelector("input[type=search]");
    if (event.key === "/" && search && document.activeElement !== search && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      search.focus();
    }
  });

  const go = async () => {
    if (!document.hidden) await ask();
    setTimeout(go, every);
  };
  document.addEventListener("visibilitychange", () => document.hidden || ask());
  count();
  setTimeout(go, every);
})();
