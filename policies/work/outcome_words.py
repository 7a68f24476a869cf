"""How tools say in people's languages that something failed, or worked: a row a language.

A row's stems gate it: a text without any of them is not looked at further. Order within a text: what is harmless is
taken out, then failures are looked for, then successes.
"""

import re
from typing import NamedTuple


class OutcomeWords(NamedTuple):
    """stems: in lower case, at least one stands in whatever `failed`, `missing` or `worked` match.

    harmless: names failures without telling of one. missing: what only a call that could not read says.
    """

    stems: tuple[str, ...]
    harmless: re.Pattern[str]
    failed: re.Pattern[str]
    missing: re.Pattern[str]
    worked: re.Pattern[str]


def _row(stems: str, harmless: str, failed: str, missing: str, worked: str) -> OutcomeWords:
    return OutcomeWords(
        tuple(stems.split()),
        *(re.compile(pattern, re.IGNORECASE | re.MULTILINE) for pattern in (harmless, failed, missing, worked)),
    )


_NO = r"(?:\b0|\bno|\bzero|\bwithout(?: any)?|\bfree of|\bnot? any)"
ENGLISH = _row(
    "",  # outcome_lines has the stems of English: there are programs' own words beside it
    rf"{_NO} (?:\w{{1,12}} ){{0,2}}(?:errors?|failures?|failed|failing|exceptions?|problems?|issues?)(?:\(s\))?"
    r"|\b(?:errors?|failures?|failed|failing|fail)(?:\(s\))?\s{0,8}[:=]\s{0,8}(?:0\b|none|null|\(none\)|false"
    r"|\[\])|\berror[- ](?:handling|handler|message|messages|code|codes|rate|report|log|page|free)s?\b"
    r"|\bfailure rate\b|\b(?:fix(?:e[sd])?|resolved?|handle[sd]?|solved?|previously"
    r"|formerly) (?:\w{1,12} ){0,2}(?:errors?|failures?|failing|failed)|\(\d+ fixed, 0 remaining\)"
    r"|\bno longer (?:fails?|crash\w*)|[\w/.-]{0,80}(?:error|fail|exception)s?[\w]{0,20}[./]\w{1,20}"
    r"|(?<!<)\b\w{1,40}_(?:error|fail|exception)\w{0,40}|\b(?:error|fail|exception)\w{0,20}_\w{1,40}",
    r"\bfail(?:ed|ure|ures|s|ing)?\b|\bunable to\b|\b(?:could|can|did|does|was|were) ?(?:not|n't)\b|\bcannot\b"
    r"|\b(?:denied|refused|rejected|crashed|aborted|timed out|timeout|forbidden|unauthori[sz]ed|cancell?ed)\b"
    r"|\b(?:not|never) (?:found|allowed|permitted|supported|recognized|available|exist)\b|\bunsuccessful"
    r"|\b(?:invalid|unknown|unsupported|missing|unexpected) (?:\w{1,20} ){0,2}(?:arg\w*|param\w*|input|option|tool"
    r"|token|key|field|value|command|request|path|type|syntax)\b|\b(?:quota|limit) exceeded\b|\bexceeded (?:the"
    r"|your)\b|\bnot (?:yet )?(?:success\w*|complete)|^\W{0,4}(?:error|fatal|exception|failure)s?\b(?! (?:code"
    r"|message)s?\b)|❌|\b(?:was|been|access|request|command|call) blocked\b|\bkilled\b",
    r"^\W{0,4}(?:error|fatal|failed|failure|cannot|can't|could not|unable|invalid|access denied"
    r"|permission denied)\b|^[^\n]{0,200}\b(?:no such file|not found|does not exist|doesn't exist"
    r"|permission denied|is a directory|cannot access|not a directory|cannot open|can't read"
    r"|operation not permitted|command not found|too large|timed out|refused)\b",
    r"\bsuccess(?:ful(?:ly)?)?\b|\bsucceeded\b|\bcomplete(?:d)?\b|\bfinished\b|^\W{0,3}(?:done|ok|okay|fine|saved"
    r"|yes)\b\W{0,3}$|\b(?:all|looks?) (?:\w{1,12} ){0,3}(?:good|fine|passed|well|done)\b|\bpassed\b|\b(?:all"
    r"|\d{1,6}) (?:\w{1,12} ){0,3}pass\b|\b\d+ passing\b|\bup[ -]to[ -]date\b|\b(?:has"
    r"|have) been (?:\w{1,12} )?(?:created|updated|written|edited|saved|deleted|removed|added|applied|moved"
    r"|renamed|changed)\b|\bwas (?:\w{1,12} )?(?:created|updated|written|edited|saved|deleted|removed|added"
    r"|applied|moved|renamed)\b|^\W{0,3}(?:wrote|created|updated|modified|edited|deleted|removed|moved|renamed"
    r"|copied|added|installed|applied|saved|overwrote|appended|inserted|replaced)\b|\badded \d+ packages?\b"
    r"|\bno (?:issues|errors|problems)(?: were| was)? (?:found|reported)\b|\b(?:0|no) errors?\b|✅|\bundone\b"
    r"|\bcheck(?:s)? ok\b|^\W{0,3}done[!.:]",
)

LANGUAGES: tuple[OutcomeWords, ...] = (
    _row(  # Chinese, simplified and traditional
        "错 失 成功 通过 完 無 无 没 沒 未 不 拒 超时 超時 异常 異常 錯 敗 存 创建 更新 已 正常",
        r"(?<!\d)0\s?(?:个|項|项|條|条|次|處|处)?\s?(?:\w{0,4})?(?:错误|失败|錯誤|失敗|异常|異常|问题)|(?:错误|失败|錯誤|失敗|异常|失败数"
        r"|错误数)\s?[:：为=]?\s?0(?!\d)|(?:没有|沒有|无|無|未)(?:任何|发现|發現|出现|出現|检测到|发生){0,2}(?:错误|失败|錯誤|失敗|异常|異常|问题|問題|报错)"
        r"|(?:错误|錯誤|异常|異常|失败)(?:处理|處理|信息|訊息|日志|码|代码|率)",
        r"失败|失敗|错误|錯誤|异常|異常|报错|出错|未成功|不成功|没有成功|沒有成功|无法|無法|拒绝|拒絕|超时|超時|找不到|不存在|未找到|没有那个文件|权限不(?:够|足)|權限不(?:夠|足)|不允许"
        r"|中断|崩溃|无效",
        r"没有那个文件或目录|沒有此一檔案或目錄|权限不(?:够|足)|權限不(?:夠|足)|未找到命令|找不到(?:文件|指令|命令|檔案)|文件不存在|无法(?:打开|读取|访问)|拒绝访问"
        r"|^\W{0,3}(?:错误|錯誤)\s?[:：]",
        r"成功|通过|通過|完成|完毕|完畢|正常|已(?:创建|更新|写入|保存|删除|修改|应用|提交)|没有(?:发现)?(?:错误|问题)|(?<!\d)0\s?个?错误",
    ),
    _row(  # Japanese
        "エラー 失敗 例外 成功 完了 しました ません できま ない 見つ 拒否 通過 合格 正常 保存",
        r"(?:エラー|失敗|例外|問題)\s?(?:は|が|数)?\s?[:：]?\s?(?:0\s?件?|なし|無し|ありません|ゼロ)(?!\d)|(?<!\d)0\s?件の?(?:エラー|失敗)"
        r"|エラー(?:処理|メッセージ|コード|率|ログ)|(?:エラー|問題)(?:なく|無く)",
        r"失敗|エラー|例外|できません|出来ません|見つかりません|ありません|存在しません|拒否|タイムアウト|中断|不正な|異常",
        r"そのようなファイルやディレクトリ|見つかりません|許可がありません|開けません|存在しません|^\W{0,3}エラー\s?[:：]",
        r"成功|完了しました|完了です|正常に|保存しました|作成しました|更新しました|削除しました|合格|すべて通過|問題ありません",
    ),
    _row(  # Korean
        "실패 오류 에러 예외 성공 완료 통과 없 거부 저장 않 못",
        r"(?:오류|에러|실패|문제)(?:가|는|이)?\s?(?:없음|없습니다|없이|없다)|(?:오류|에러|실패)\s?[:：]?\s?0\s?[개건]?(?!\d)"
        r"|(?<!\d)0\s?[개건]의?\s?(?:오류|에러|실패)|(?:오류|에러)\s?(?:처리|메시지|코드|로그)",
        r"실패|오류|에러|예외|찾을 수 없|없습니다|거부|할 수 없|못했|시간 초과|중단|잘못된",
        r"그런 파일이나 디렉터리가 없|찾을 수 없|허가 거부|권한이 없|열 수 없|^\W{0,3}(?:오류|에러)\s?[:：]",
        r"성공|완료|통과|저장했|저장되었|생성되었|생성했|업데이트되었|삭제되었|오류 없음",
    ),
    _row(  # German
        "fehl nicht erfolg abgesch bestanden fertig gespeichert erstellt kein gescheitert abgebr verweigert"
        " ungült absturz",
        r"\b(?:keine?|ohne|0|null)\s(?:\w{1,14}\s){0,2}(?:fehlern?|fehlschläge|probleme)\b|\bfehler\s?[:=]\s?0\b"
        r"|\bfehler(?:behandlung|meldung|meldungen|code|frei|rate)\b"
        r"|\b0\s(?:von \d{1,6}\s)?(?:\w{1,12}\s)?(?:fehlgeschlagen|gescheitert)|\b(?:fehlgeschlagen"
        r"|gescheitert)\s?[:=]\s?0\b",
        r"\bfehler\b|fehlgeschlagen|fehlschlag|gescheitert|\bnicht\s(?:gefunden|möglich|erfolgreich|erlaubt"
        r"|geladen|geöffnet|zulässig|vorhanden|bestanden)|konnten?\s(?:\w{1,20}\s){0,3}nicht"
        r"|\bkann\s(?:\w{1,20}\s){0,3}nicht|keine berechtigung|verweigert|abgebrochen|abgestürzt|ungültig"
        r"|zeitüberschreitung",
        r"datei oder verzeichnis nicht gefunden|befehl nicht gefunden|keine berechtigung|zugriff verweigert"
        r"|nicht gefunden|^\W{0,3}fehler\s?:",
        r"\berfolgreich\b|\berfolg\b|abgeschlossen|\bbestanden\b|\bfertig\b|gespeichert\b|erstellt\b|\b(?:keine|0"
        r"|ohne) fehler|\b0 (?:von \d{1,6} )?(?:\w{1,12} )?fehlgeschlagen",
    ),
    _row(  # French
        "échec échou echec erreur impossible introuvable réuss succès sans termin refus aucun enregistr n'a pu"
        " invalide échoué",
        r"\b(?:sans(?: aucune?)?|aucune?|0|zéro)\s(?:\w{1,14}\s)?(?:erreurs?|échecs?|problèmes?)\b|\b(?:erreurs?"
        r"|échecs?)\s{0,2}[:=]\s{0,2}0\b|\bgestion des erreurs\b|\bmessages? d'erreurs?\b|\b0 (?:tests? )?échoués?",
        r"\berreurs?\b|\béchec(?:s|\b)|\bechec\b|échou|impossible\b|introuvable|\brefusée?\b|n'a pas (?:pu"
        r"|été trouvée?|abouti)|non trouvée?|pas trouvée?|n'ont pas pu|ne peut pas|n'existe pas|non autorisé"
        r"|invalide|expiré",
        r"aucun fichier ou dossier|commande introuvable|permission (?:non accordée|refusée)|introuvable"
        r"|n'existe pas|^\W{0,3}erreur\s?:",
        r"\bréussi(?:e|s|es)?\b|succès|terminée?s?\b|enregistrée?\b|\b(?:sans|aucune?|0) (?:erreurs?|échecs?)",
    ),
    _row(  # Spanish
        "error fall éxito exito correct complet no existe no se encontr no se pud denegad sin guardad imposible"
        " inválid rechaz",
        r"\b(?:sin|ning[úu]n|0|cero)\s(?:\w{1,14}\s)?(?:errores|error|fallos?|fallas?|problemas?)\b|\b(?:errores"
        r"|fallos)\s?[:=]\s?0\b|\b(?:manejo|gesti[óo]n) de errores\b|\bmensajes? de error\b"
        r"|\b0 (?:pruebas )?fallidas",
        r"\berrores\b|\berror (?:al|en|de|del|fatal|interno)\b|^\W{0,3}error\s?:|\bfall(?:o|ó|os|ida|idas|ido|idos"
        r"|a|as)\b|\bno (?:se )?(?:pudo|pudieron|puede|encontr\w{1,6}|existe|permitid[oa])\b|no encontrad[oa]"
        r"|denegad[oa]|rechazad[oa]|imposible|inválid[oa]|tiempo de espera",
        r"no existe el (?:fichero|archivo)|no encontrad[oa]|permiso denegado|no se (?:pudo|puede) abrir"
        r"|^\W{0,3}error\s?:",
        r"\béxito\b|exitosamente|\bcorrectamente\b|\bcompletad[oa]s?\b|\bcorrect[oa]s\b|guardad[oa]|\b(?:sin"
        r"|ning[úu]n|0) error(?:es)?\b|\bsuperad[oa]s\b",
    ),
    _row(  # Portuguese
        "erro falh sucesso conclu não nao negad salv sem imposs inválid",
        r"\b(?:sem|nenhum|0|zero)\s(?:\w{1,14}\s)?(?:erros?|falhas?|problemas?)\b|\b(?:erros?"
        r"|falhas?)\s?[:=]\s?0\b|\btratamento de erros\b|\bmensage(?:m|ns) de erro\b|\b0 (?:testes )?falharam",
        r"\berros?\b|\bfalh(?:a|as|ou|aram)\b|\bn[ãa]o (?:foi poss[íi]vel|encontrad[oa]|existe|p[ôo]de"
        r"|permitid[oa])|negad[oa]\b|imposs[íi]vel|inv[áa]lid[oa]|tempo esgotado",
        r"arquivo ou diretório (?:não encontrado|inexistente)|comando não encontrado|permissão negada"
        r"|n[ãa]o encontrad[oa]|^\W{0,3}erro\s?:",
        r"\bsucesso\b|\bconclu[íi]d[oa]s?\b|\bsalv[oa]\b|\b(?:sem|nenhum|0) erros?\b|\bpassaram\b|\baprovad[oa]s\b",
    ),
    _row(  # Russian
        "ошиб не удалось неудач успеш успех пройден заверш готово не найден отказ сбой нет сохранен невозмож провал",
        r"\b(?:без|нет|0)\s(?:\w{1,14}\s)?(?:ошибок|ошибки|сбоев)|\bошиб(?:ок|ки)\s?[:=—-]\s?0\b|\bошибок (?:нет"
        r"|не (?:обнаружено|найдено|было|выявлено))|\bобработк[аи] ошибок|сообщени[ея] об ошибк"
        r"|\bпровалено\s?[:=]\s?0\b|\b0 провален",
        r"\bошибк[аиу]\b|\bошибок\b|не удалось|не найден[оаы]?|неудач|отказано|сбой|невозможно|не существует"
        r"|провален|истекло|неуспешно|не успешно|недопустим|прерван",
        r"нет такого файла или каталога|команда не найдена|отказано в доступе|не найден|не существует"
        r"|^\W{0,3}ошибка\s?:",
        r"успешно|успех|\bпройден[оаы]?\b|заверш[её]н[оаы]?\b|\bготово\b|сохран[её]н[оаы]?\b|(?:без|0) ошибок"
        r"|ошибок (?:не|нет)",
    ),
    _row(  # Italian
        "error fallit imposs success complet non salvat negat senza nessun",
        r"\b(?:senza|nessun|0)\s(?:\w{1,14}\s)?(?:errori|errore)\b|\berrori\s?[:=]\s?0\b|\bgestione degli errori\b"
        r"|\b0 fallit[io]",
        r"\berror[ei]\b|fallit[oaie]\b|\bimpossibile\b|\bnon (?:trovat[oa]|riuscit[oa]|esiste|consentit[oa]"
        r"|è stato possibile)|negat[oa]\b",
        r"file o directory non esistente|comando non trovato|permesso negato|non trovat[oa]|^\W{0,3}errore\s?:",
        r"\bsuccesso\b|\bcompletat[oa]\b|\bsalvat[oa]\b|\briuscit[oa]\b|\b(?:senza|nessun|0) error[ei]\b"
        r"|\bsuperati\b",
    ),
    _row(  # Dutch
        "fout mislukt niet geslaagd voltooid gelukt opgeslagen geweigerd geen",
        r"\b(?:geen|zonder|0)\s(?:\w{1,14}\s)?(?:fouten|fout)\b|\bfouten\s?[:=]\s?0\b|\bfout(?:afhandeling|melding"
        r"|code)\w{0,3}\b|\b0 mislukt",
        r"\bfout(?:en)?\b|mislukt|\bniet (?:gevonden|mogelijk|gelukt|toegestaan)"
        r"|\bkon(?:den)? (?:\w{1,20} ){0,3}niet|geweigerd|ongeldig",
        r"bestand of map bestaat niet|opdracht niet gevonden|toegang geweigerd|niet gevonden|^\W{0,3}fout\s?:",
        r"geslaagd|voltooid|\bgelukt\b|opgeslagen|geen fouten|succesvol",
    ),
    _row(  # Polish
        "błąd błęd nie udało powiod sukces pomyśl zakończ zapisan nie można odmow brak bez",
        r"\b(?:bez|brak|0)\s(?:\w{1,14}\s)?błęd(?:ów|u|y)\b|\bbłęd(?:ów|y)\s?[:=]\s?0\b|\bobsług[aię] błędów\b",
        r"\bbłąd\b|\bbłęd(?:y|ów)\b|nie (?:powiodł\w{0,3}|udało|można|znaleziono|istnieje)|odmowa|odmówiono"
        r"|nieprawidłow",
        r"nie ma takiego pliku|nie znaleziono|brak dostępu|^\W{0,3}błąd\s?:",
        r"pomyślnie|sukces|zakończono|zapisano|bez błędów|zaliczon[eoa]",
    ),
    _row(  # Turkish
        "hata başarı bulunamadı tamamland reddedildi kaydedildi yok",
        r"\b(?:0|sıfır|hiç)\s(?:\w{1,14}\s)?hata\b|\bhata (?:yok|bulunamadı)|\bhatasız\b|\bhata\s?[:=]\s?0\b",
        r"\bhata(?:sı|lar)?\b|başarısız|bulunamadı|reddedildi|açılamadı|yapılamadı|geçersiz",
        r"böyle bir dosya|komut bulunamadı|izin reddedildi|bulunamadı|^\W{0,3}hata\s?:",
        r"başarıyla|başarılı|tamamlandı|kaydedildi|hata yok",
    ),
)
# Those of them that may be written without a letter beyond ASCII.
LATIN = tuple(row for row in LANGUAGES if any(stem.isascii() for stem in row.stems))
