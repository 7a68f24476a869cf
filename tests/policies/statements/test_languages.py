"""Languages that are files: their rows are read, and rules of a person are rules in each of them."""

from __future__ import annotations

import pytest

from policies.conversation.transcript import Utterance
from policies.statements.entries import HARD
from policies.statements.ledger import Entry, merge, statements_in
from policies.statements.statements import read_statement
from policies.statements.words import CONCEPTS, KINDS, LANGUAGES, stem

RULES = {
    "de": (
        "Fass den Ordner vendor niemals an.",
        "Pushe auf keinen Fall nach main.",
        "Die Migrationen dürfen nicht geändert werden.",
        "Führe vor jedem Commit immer die Tests aus.",
        "Jede neue Funktion muss einen Test haben.",
        "Verwende nur Bibliotheken, die schon da sind.",
        "Antworte ausschließlich auf Deutsch.",
        "Bitte keine neuen Abhängigkeiten.",
        "Direkte Zugriffe auf die Datenbank sind verboten.",
        "Die Logs müssen ohne Kundennamen sein.",
    ),
    "pt": (
        "Nunca faça push direto na main.",
        "Não altere os arquivos gerados.",
        "Não mexa na pasta vendor.",
        "Rode sempre os testes antes do commit.",
        "Toda função nova deve ter um teste.",
        "Use apenas bibliotecas que já estão no projeto.",
        "Responda somente em português.",
        "É proibido guardar senhas no código.",
        "Os logs não podem ter nomes de clientes.",
        "Jamais apague os dados de produção.",
    ),
    "es": (
        "Nunca hagas push directo a main.",
        "No modifiques los archivos generados.",
        "No toques la carpeta vendor.",
        "Ejecuta siempre las pruebas antes del commit.",
        "Cada función nueva debe tener una prueba.",
        "Usa solo las bibliotecas que ya están en el proyecto.",
        "Responde únicamente en español.",
        "Está prohibido guardar contraseñas en el código.",
        "Los registros no pueden tener nombres de clientes.",
        "Jamás borres los datos de producción.",
    ),
    "fr": (
        "Ne pousse jamais directement sur main.",
        "Ne modifie pas les fichiers générés.",
        "Ne touche pas au dossier vendor.",
        "Lance toujours les tests avant le commit.",
        "Chaque nouvelle fonction doit avoir un test.",
        "Utilise uniquement les bibliothèques déjà présentes.",
        "Réponds seulement en français.",
        "Il est interdit de garder des mots de passe dans le code.",
        "Les journaux ne doivent pas contenir de noms de clients.",
        "N'efface en aucun cas les données de production.",
    ),
    "it": (
        "Non fare mai push diretto su main.",
        "Non modificare i file generati.",
        "Non toccare la cartella vendor.",
        "Esegui sempre i test prima del commit.",
        "Ogni nuova funzione deve avere un test.",
        "Usa solo le librerie già presenti nel progetto.",
        "Rispondi esclusivamente in italiano.",
        "È vietato salvare password nel codice.",
        "I log non devono contenere nomi di clienti.",
        "Per nessun motivo cancellare i dati di produzione.",
    ),
    "ru": (
        "Никогда не пушь напрямую в main.",
        "Не меняй сгенерированные файлы.",
        "Не трогай папку vendor.",
        "Всегда запускай тесты перед коммитом.",
        "У каждой новой функции должен быть тест.",
        "Используй только те библиотеки, что уже есть.",
        "Отвечай исключительно по-русски.",
        "Запрещено хранить пароли в коде.",
        "В логах не должно быть имён клиентов.",
        "Ни в коем случае не удаляй данные из продакшена.",
    ),
    "ja": (
        "main に直接 push しないでください。",
        "生成されたファイルは変更禁止です。",
        "vendor フォルダには絶対に触らないで。",
        "コミットの前に必ずテストを実行してください。",
        "新しい関数には常にテストを書いてください。",
        "既存のライブラリのみ使ってください。",
        "回答は日本語だけでお願いします。",
        "パスワードをコードに書いてはいけません。",
        "ログに顧客名を出してはならない。",
        "本番のデータは決して消さないこと。",
    ),
    "ko": (
        "main 브랜치에 직접 푸시하지 마세요.",
        "생성된 파일은 수정 금지입니다.",
        "vendor 폴더는 절대 건드리지 마.",
        "커밋하기 전에 반드시 테스트를 실행하세요.",
        "새 함수에는 항상 테스트를 작성해야 합니다.",
        "이미 있는 라이브러리만 사용하세요.",
        "한국어로만 답하세요.",
        "코드에 비밀번호를 저장하면 안 됩니다.",
        "로그에 고객 이름을 남기지 말아 주세요.",
        "운영 데이터는 결코 삭제하면 안 돼요.",
    ),
}
TALK = (
    *(
        "Das geht leider nicht.",
        "Der Test schlägt fehl.",
        "Kannst du mal in die Logs schauen?",
        "Danke, sieht gut aus.",
    ),
    *("Não funciona aqui.", "Obrigado, ficou ótimo.", "O teste falhou de novo.", "Qual é a porta?"),
    *("No funciona todavía.", "Gracias, quedó muy bien.", "No sé qué pasa.", "¿Cuál es el puerto?"),
    *("Merci, c'est parfait.", "Le test échoue encore.", "Tu peux regarder les logs ?", "Ça marche."),
    *("Non funziona ancora.", "Grazie, va bene così.", "Il test fallisce.", "Non so perché."),
    *("Не работает.", "Спасибо, отлично.", "Тест опять падает.", "Не знаю, почему так."),
    *("ありがとう、いいですね。", "テストが失敗しました。", "続けてください。", "ログを見てもらえますか？"),
    *("고마워요, 좋네요.", "테스트가 실패했어요.", "계속 진행해 주세요.", "로그를 봐 줄래요?"),
)
UPDATES = (
    ("Benutze Port 8080.", "Der Port ist jetzt 9090."),
    ("Die Frist ist Freitag.", "Die Frist ist jetzt Montag."),
    ("A porta é 8080.", "A porta agora é 9090."),
    ("O prazo é sexta.", "O prazo mudou para segunda."),
    ("El puerto es 8080.", "El puerto ahora es 9090."),
    ("El plazo es el viernes.", "El plazo cambió al lunes."),
    ("Le port est 8080.", "Le port est maintenant 9090."),
    ("La porta è 8080.", "La porta ora è 9090."),
    ("La scadenza è venerdì.", "La scadenza ora è lunedì."),
    ("Порт 8080.", "Порт теперь 9090."),
    ("ポートは 8080 です。", "ポートは 9090 に変更します。"),
    ("締め切りは金曜日です。", "締め切りは月曜日に変更になりました。"),
    ("포트는 8080입니다.", "포트는 이제 9090입니다."),
    ("마감은 금요일입니다.", "마감이 월요일로 변경되었습니다."),
)
DISTINCT = (
    ("Lösche niemals die Sicherungen.", "Lösche niemals die Protokolle."),
    ("Der Port der API ist 8080.", "Der Port der Oberfläche ist jetzt 9090."),
    ("Die Frist für den Bericht ist Freitag.", "Die Frist für die Rechnung ist jetzt Montag."),
    ("A porta da API é 8080.", "A porta do painel agora é 9090."),
    ("Nunca apague os backups.", "Nunca apague os logs."),
    ("El puerto de la API es 8080.", "El puerto del panel ahora es 9090."),
    ("Le port de la base est 5432.", "Le port du cache est maintenant 6380."),
    ("Il test di parse_row deve fallire.", "Il test di parse_page ora deve fallire."),
    ("Порт базы 5432.", "Порт кэша теперь 6380."),
    ("parse_row должен бросать ошибку.", "parse_page теперь должен бросать ошибку."),
    ("管理画面のポートは 8080 です。", "公開画面のポートは 9090 に変更します。"),
    ("バックアップは絶対に削除しないで。", "ログは絶対に削除しないで。"),
    ("parse_row は必ず例外を投げること。", "parse_page は必ず例外を投げること。"),
    ("관리 포트는 8080입니다.", "공개 포트는 이제 9090입니다."),
    ("백업을 절대 삭제하지 마세요.", "로그를 절대 삭제하지 마세요."),
)


def said(text: str, position: int = 0) -> list[Entry]:
    return list(statements_in([Utterance(position, "user", text)], (), first_user=-1))


def after(pair: tuple[str, str]) -> list[str]:
    return [entry.text for entry in merge(merge((), said(pair[0], 2)), said(pair[1], 30))]


@pytest.mark.parametrize("name", LANGUAGES)
def test_every_row_of_a_language_has_a_sentence_that_it_reads(name: str) -> None:
    language = LANGUAGES[name]
    assert language.examples.keys() == language.cues.keys()
    missed = [
        (cue, sentence)
        for cue, sentences in language.examples.items()
        for sentence in sentences
        if cue not in read_statement(sentence).cues and not (cue == "asks" and read_statement(sentence).question)
    ]
    assert missed == []


def test_words_of_a_row_have_its_meaning() -> None:
    for language in LANGUAGES.values():
        if language.script == "ascii":
            assert all(CONCEPTS[stem(word)] == name for name, row in language.concepts.items() for word in row)
            assert all(KINDS[word] == name for name, row in language.kinds.items() for word in row)


@pytest.mark.parametrize("name", RULES)
def test_a_persons_rule_is_hard_in_every_language(name: str) -> None:
    entries = [entry for rule in RULES[name] for entry in said(rule)]
    assert [entry.text for entry in entries if (entry.kind, entry.rank) != ("directive", HARD)] == []
    assert len(entries) == len(RULES[name])


def test_reports_and_thanks_are_no_rules() -> None:
    assert [entry.text for text in TALK for entry in said(text) if entry.kind == "directive"] == []


@pytest.mark.parametrize("pair", UPDATES, ids=str)
def test_a_later_value_replaces_an_earlier_one_in_every_language(pair: tuple[str, str]) -> None:
    assert after(pair) == [pair[1]]


@pytest.mark.parametrize("pair", DISTINCT, ids=str)
def test_other_things_stay_in_every_language(pair: tuple[str, str]) -> None:
    assert after(pair) == [*pair]
