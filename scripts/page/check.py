#!/usr/bin/env python3
"""Drives the chat page and the status page of a running server with headless Chromium.

    ingle serve smollm2:135m whisper:base --port 8080 &
    python3 scripts/page/check.py http://127.0.0.1:8080 /tmp/screenshots

Needs `selenium` from PyPI, `chromium` and `chromium-driver` from Debian. Prints one PASS or FAIL line per check and exits 1 if
one failed. Screenshots go to the folder. Without a speech model the buttons for recordings must be hidden.
"""

import os
import sys
import time

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

# The input of the browser's microphone.
SPEECH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../fixtures/audio/jfk.wav")

MARKDOWN = """# Title\n\nSome **bold**, *italics*, `code`, $x^2$, \\(\\alpha\\) and [a link](https://example.org/a_(b)); not $5 or $10.\n
\\[\n\\frac{a}{b} = \\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}\n\\]\n
- one\n  - nested\n- two\n\n1. first\n2. second\n
| name | size |\n|:--|--:|\n| a | 1 |\n
> quoted\n
```rust\nfn main() { let n = 42; println!("hi"); } // end\n```\n
<img src=x onerror="window.broken=1"> [bad](javascript:window.broken(1))"""


def main(base, folder):
    os.makedirs(folder, exist_ok=True)
    options = webdriver.ChromeOptions()
    for argument in ["--headless=new", "--no-sandbox", "--window-size=1280,860", "--disable-dev-shm-usage",
                     "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream",
                     "--use-file-for-fake-audio-capture=" + os.path.realpath(SPEECH)]:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    failed = []

    def check(name, good, detail=""):
        print("PASS" if good else "FAIL", name, detail if not good else "", flush=True)
        if not good:
            failed.append(name)

    def wait(script, seconds=60):
        end = time.time() + seconds
        while time.time() < end:
            if driver.execute_script("return " + script):
                return True
            time.sleep(0.05)
        return False

    def shot(name):
        driver.save_screenshot(os.path.join(folder, name + ".png"))

    def box():
        return driver.find_element(By.ID, "box")

    def press(text):
        return driver.find_element(By.XPATH, f"(//div[@id='talk']//button[text()='{text}'])[last()]").click()

    idle = "!busy && chat.messages.length > 0"
    try:
        driver.get(base + "/")
        check("the model is named", wait("document.getElementById('model').value !== ''", 30))
        shown = driver.execute_script("return document.getElementById('model').selectedOptions[0].textContent")
        check("a model's file is named, not its folder", not shown.startswith("/"), shown)
        shot("empty")
        mic = driver.find_element(By.ID, "mic")
        if driver.execute_script("return models.some(m => m.capabilities?.includes('transcription'))"):
            check("recordings can be made", wait("!document.getElementById('mic').hidden && !document.getElementById('audio').hidden", 5))
            mic.click()
            time.sleep(8)
            shot("recording")
            mic.click()
            heard = wait("/fellow American/i.test(document.getElementById('box').value)")
            check("a recording becomes text", heard, box().get_attribute("value"))
            box().clear()
        else:
            check("no recordings without a speech model", not mic.is_displayed())
        driver.execute_script("settings.max_tokens = 60; settings.temperature = 0;")
        box().send_keys("Write a short list of three fruits.", Keys.ENTER)
        check("text streams", wait("busy && chat.messages.at(-1).content.length > 5"))
        shot("streaming")
        check("the answer ends", wait(idle))
        last = driver.execute_script("return chat.messages.at(-1)")
        check("no error", not last.get("error"), last.get("error"))
        check("tokens per second are shown", "tokens/s" in (last.get("info") or ""), str(last.get("info")))
        shot("answer")

        press("Retry")
        check("retry begins an answer", wait("busy !== null", 10))
        check("retry keeps two messages", wait(idle) and driver.execute_script("return chat.messages.length") == 2)
        step = lambda: driver.find_element(By.CSS_SELECTOR, ".versions span").text
        check("the old answer is kept", step() == "2 of 2", step())
        driver.find_element(By.CSS_SELECTOR, ".versions button").click()
        check("and comes back", step() == "1 of 2" and driver.execute_script("return chat.messages[1].content") == last["content"])
        wide = driver.execute_script("return document.querySelector('#list .open').clientWidth / document.getElementById('list').clientWidth")
        check("titles have the width of the list", wide > 0.9, str(wide))

        driver.execute_script("settings.max_tokens = 1000;")
        box().send_keys("Tell a very long story.", Keys.ENTER)
        wait("busy && chat.messages.at(-1).content.length > 5")
        box().send_keys(Keys.ESCAPE)
        check("Escape stops", wait("!busy", 5) and driver.execute_script("return chat.messages.at(-1).stopped === true"))
        info = driver.execute_script("return chat.messages.at(-1).info")
        check("a stopped answer has its figures", "tokens/s" in info and "in prompt" in info and info.endswith("stopped"), info)

        driver.execute_script("settings.max_tokens = 20;")
        box().send_keys(Keys.ARROW_UP)
        area = driver.switch_to.active_element
        check("arrow up edits the last message", area.get_attribute("class") == "edit")
        area.send_keys(" Really.", Keys.ENTER)
        wait("busy !== null", 10)
        wait(idle)
        check("an edited message is sent", driver.execute_script("return chat.messages.at(-2).content").endswith("Really."))

        driver.refresh()
        check("a reload keeps conversations", wait("chats.length === 1 && document.querySelectorAll('#list li').length === 1", 10))
        driver.find_element(By.CSS_SELECTOR, "#list .open").click()
        check("a conversation opens", wait("document.querySelectorAll('.turn').length === 4", 5))

        ActionChains(driver).key_down(Keys.CONTROL).send_keys("k").key_up(Keys.CONTROL).perform()
        check("Ctrl+K begins a chat", wait("chat.messages.length === 0", 5))
        driver.execute_script(
            "chat.messages.push({role:'user',content:'Show me markdown'},{role:'assistant',content:arguments[0],reasoning:'Think.',info:'51.2 tokens/s',"
            "calls:[{name:'weather',arguments:'{\"city\":\"Ulm\"}'}]}); draw();", MARKDOWN)
        parts = {"h1": 1, "strong": 1, "em": 1, "ul ul": 1, "ol": 1, "td.r": 1, "blockquote": 1, ".code .kw": 2, ".code .str": 2, "details:not([hidden])": 1,
                 "math": 3, "mfrac": 1, "mtable": 1, "a[href='https://example.org/a_(b)']": 1}
        for part, n in parts.items():
            found = len(driver.find_elements(By.CSS_SELECTOR, ".assistant " + part))
            check("markdown: " + part, found >= n, f"found {found}, expected {n}")
        shown = driver.execute_script("return document.querySelector('.assistant .body').textContent")
        check("what is no formula stays text", "not $5 or $10." in shown and "bad)" not in shown, shown)
        unsafe = driver.execute_script("return window.broken || document.querySelector('.assistant img, .assistant a[href^=javascript]')")
        check("markup of a model is text", not unsafe)
        # The same text in pieces gives the same nodes, and unchanged nodes are kept.
        same = driver.execute_script(
            "const t = arguments[0], a = new Writer(), b = new Writer(); b.set(t); a.set(t.slice(0, 60)); const first = a.node.firstChild;"
            "for (let i = 61; i <= t.length; i++) a.set(t.slice(0, i)); return a.node.innerHTML === b.node.innerHTML && a.node.firstChild === first", MARKDOWN)
        check("streamed markdown equals whole markdown", same)
        shot("markdown")
        was = driver.execute_script("return document.documentElement.dataset.theme")
        driver.find_element(By.ID, "theme").click()
        check("the theme switches", driver.execute_script("return document.documentElement.dataset.theme") != was)
        shot("dark")
        driver.find_element(By.ID, "settings").click()
        shot("settings")
        done = driver.find_element(By.CSS_SELECTOR, "#options .go").rect
        height = driver.execute_script("return innerHeight")
        check("the end of the settings is in sight", done["y"] + done["height"] <= height, f"{done} of {height}")
        schema = driver.find_element(By.CSS_SELECTOR, "[data-key=schema]")
        schema.send_keys("{")
        driver.find_element(By.CSS_SELECTOR, "#options .go").click()
        check("a wrong schema is refused", driver.find_element(By.ID, "wrong").is_displayed())
        schema.clear()
        driver.find_element(By.CSS_SELECTOR, "#options .go").click()
        check("settings close", wait("!document.querySelector('dialog[open]')", 3))

        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True})
        check("a phone's width is enough", wait("document.documentElement.scrollWidth <= 390", 3))
        shot("phone")
        driver.find_element(By.ID, "menu").click()
        time.sleep(0.4)
        check("the menu opens", driver.find_element(By.ID, "new").is_displayed())
        shot("phone_menu")
        driver.execute_script("document.body.classList.remove('open'); document.getElementById('theme').click();")
        time.sleep(0.4)
        shot("phone_light")
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

        # The check is before the connection is cut, because that adds a message to the console.
        log = [e["message"] for e in driver.get_log("browser") if e["level"] == "SEVERE"]
        network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        driver.execute_cdp_cmd("Network.enable", {})
        driver.execute_cdp_cmd("Network.emulateNetworkConditions", {"offline": True, **network})
        box().send_keys("Are you there?", Keys.ENTER)
        check("a server that is gone is told of in words", wait("!busy && chat.messages.at(-1).error === UNREACHABLE", 10))
        check("beside the model too", wait("document.getElementById('state').textContent === UNREACHABLE", 5))
        shot("gone")
        driver.execute_cdp_cmd("Network.emulateNetworkConditions", {"offline": False, **network})
        check("and its return", wait("document.getElementById('state').textContent === 'The server answers again.'", 10))
        driver.get_log("browser")
        driver.get(base + "/status")
        check("status shows a model", wait("document.querySelectorAll('#models section .card').length >= 8", 10))
        time.sleep(3)
        shot("status")
        heads = driver.execute_script("return [...document.querySelectorAll('h2')].filter(h => h.offsetParent).map(h => h.textContent)")
        check("every block has a title", all(heads) and heads[0] == "Server", str(heads))
        version = driver.execute_script("return document.querySelector('#memory b').textContent")
        check("the version is told", version.startswith("Ingle "), version)
        about = driver.execute_script("return document.querySelector('#models h2 span').textContent")
        check("device and context are told", "context" in about and len(about.split(" · ")) >= 4, about)
        log += [e["message"] for e in driver.get_log("browser") if e["level"] == "SEVERE"]
        check("the console has no errors", not log, "; ".join(log))
    finally:
        driver.quit()
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: check.py URL FOLDER")
    sys.exit(main(sys.argv[1].rstrip("/"), sys.argv[2]))
